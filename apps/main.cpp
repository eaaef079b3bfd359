// The program: reads the command line, runs one subcommand, and turns an error that ends it into
// one line and an exit code. docs/architecture.md names the places that catch an error and
// continue.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "apps/cli/help.h"
#include "apps/commands.h"
#include "apps/common/exit_codes.h"
#include "apps/common/log.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/version.h"
#include "apps/generate/commands.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm {
namespace {

class Main {
 public:
  explicit Main(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {
    const Option version =
        program_.root().flag("-V,--version", version_, "Print the version and exit").aliases("-v");
    program_.root().flag("--json", version_json_, "Print the version as JSON").needs(version);
    add_commands(program_);
  }

  // Returns the exit code.
  int run() {
    try {
      occupy_standard_streams();
      install_signal_handlers(wants_json());
      install_log_sink();
      return dispatch(program_.parse(with_command(program_, arguments_)));
    } catch (const Error& error) {
      return report(error.code(), error.what());
    } catch (const Interrupted& interrupted) {
      return 128 + interrupted.signal;
    } catch (const std::bad_alloc&) {
      return report(ExitCode::kRuntime,
                    "not enough memory; use a smaller context (-c) or a smaller model");
    } catch (const std::exception& error) {
      // A broken contract between two of our own functions (ContractViolation), or something that
      // nobody thought of.
      return report(ExitCode::kRuntime, std::string("internal error: ") + error.what());
    }
  }

 private:
  int dispatch(const Program::Request& request) {
    if (request.help) {
      const CommandInfo info =
          request.command != nullptr ? program_.info(*request.command) : program_.info();
      write_stdout(help_text(info, help_columns()));
      return 0;
    }
    if (version_) {
      print_version(version_json_);
      return 0;
    }
    if (request.command != nullptr) {
      require_stack();
      return request.command->run();
    }
    write_stdout(short_help(program_.info()));
    return 0;
  }

  // Threads have as much as the main one (ulimit -s), and an overflow says nothing.
  static void require_stack() {
    constexpr rlim_t kLeast = rlim_t{1} << 20;  // a kernel's buffers, or a template's nesting
    rlimit limit = {};
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < kLeast) {
      throw Error(ExitCode::kRuntime, "the stack is limited to " +
                                          std::to_string(limit.rlim_cur >> 10) +
                                          " kB, edgellm needs " + std::to_string(kLeast >> 10) +
                                          "; type: ulimit -s 8192");
    }
  }

  // Also where the command line cannot be parsed.
  bool wants_json() const {
    return std::find(arguments_.begin(), arguments_.end(), "--json") != arguments_.end();
  }

  // The line for people on stderr and, where the caller reads JSON, an object on stdout.
  int report(ExitCode code, const std::string& message) const {
    print_error(message);
    const int exit_code = static_cast<int>(code);
    if (wants_json()) {
      // Past write_stdout(), which may throw: what there was to say is on stderr already.
      const std::string line = json_line(
          {{"error",
            {{"code", exit_code_name(code)}, {"exit_code", exit_code}, {"message", message}}}});
      std::fputs(line.c_str(), stdout);
    }
    return exit_code;
  }

  std::vector<std::string> arguments_;
  Program program_{"Inference engine for BitNet b1.58 (ternary-weight) language models",
                   "  edgellm run model.tmac2 \"Once upon a time\"\n"
                   "  edgellm convert bitnet-b1.58-2B-4T/ -o model.tmac2\n"
                   "  edgellm COMMAND --help"};
  bool version_ = false;
  bool version_json_ = false;
};

}  // namespace
}  // namespace edgellm

int main(int argc, char** argv) {
  // A caller may give no arguments at all, not even a name.
  return edgellm::Main({argv + std::min(argc, 1), argv + argc}).run();
}
