// The program: reads the command line, runs one subcommand, and turns whatever went wrong into one
// line and an exit code. No other file catches anything, but for chat, which goes on after an error
// that a person at a terminal can mend, and batch, which goes on after one of a single request.
#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/help.h"
#include "apps/cli/help_topics.h"
#include "apps/cli/usage_error.h"
#include "apps/commands.h"
#include "apps/common/log.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/version.h"
#include "base/error.h"

namespace edgellm {
namespace {

class Program {
 public:
  Program(int argc, char** argv) : argc_(argc), argv_(argv) {
    root_.footer(
        "  edgellm run model.tmac2 \"Once upon a time\"\n"
        "  edgellm convert bitnet-b1.58-2B-4T/ -o model.tmac2\n"
        "  edgellm COMMAND --help");
    root_.set_help_flag("-h,--help", "Print this help and exit");
    root_.require_subcommand(0, 1);
    CLI::Option* version = root_.add_flag("-V,--version", version_, "Print the version and exit");
    root_.add_flag("--json", version_json_, "Print the version as JSON")->needs(version);
    commands_ = {add_run(root_),    add_chat(root_),   add_batch(root_),    add_convert(root_),
                 add_info(root_),   add_verify(root_), add_tokenize(root_), add_perplexity(root_),
                 add_logits(root_), add_synth(root_),  add_bench(root_),    add_compare(root_),
                 add_devices(root_)};
    commands_.push_back(add_completion(root_));
    commands_.push_back(add_help(root_));  // the last: it looks at the others
  }

  // Returns the exit code.
  int run() {
    try {
      occupy_standard_streams();
      install_log_sink();
      install_signal_handlers(wants_json());
      return parse() ? dispatch() : show_help();
    } catch (const CLI::ParseError& error) {
      return report(ExitCode::kUsage, usage_message(root_, error, {argv_ + 1, argv_ + argc_}));
    } catch (const Error& error) {
      return report(error.code(), error.what());
    } catch (const Interrupted& interrupted) {
      return 128 + interrupted.signal;
    } catch (const std::bad_alloc&) {
      return report(ExitCode::kRuntime,
                    "not enough memory; use a smaller context (-c) or a smaller model");
    } catch (const std::exception& error) {
      // A broken promise between two of our own functions (ContractViolation), or something nobody
      // thought of.
      return report(ExitCode::kRuntime, std::string("internal error: ") + error.what());
    }
  }

 private:
  // False when --help was asked for: CLI11 says so with an exception.
  bool parse() {
    try {
      root_.parse(argc_, argv_);
      return true;
    } catch (const CLI::CallForHelp&) {
      return false;
    }
  }

  int dispatch() const {
    if (version_) {
      print_version(version_json_);
      return 0;
    }
    for (const Command& command : commands_) {
      if (command.app->parsed()) return command.run();
    }
    write_stdout(short_help(command_info(root_)));
    return 0;
  }

  int show_help() const {
    const auto parsed = root_.get_subcommands();
    const CLI::App& app = parsed.empty() ? root_ : *parsed.front();
    write_stdout(help_text(command_info(app), help_columns()));
    return 0;
  }

  // Also where the command line cannot be parsed.
  bool wants_json() const {
    return std::any_of(argv_ + std::min(1, argc_), argv_ + argc_,
                       [](const char* argument) { return std::string_view(argument) == "--json"; });
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

  int argc_;
  char** argv_;
  CLI::App root_{"Inference engine for BitNet b1.58 (ternary-weight) language models", "edgellm"};
  bool version_ = false;
  bool version_json_ = false;
  std::vector<Command> commands_;
};

}  // namespace
}  // namespace edgellm

int main(int argc, char** argv) { return edgellm::Program(argc, argv).run(); }
