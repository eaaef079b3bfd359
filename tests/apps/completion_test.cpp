// Completion scripts, tried in the shells they are for: keys go into a terminal in which the shell
// runs, Tab among them, and `edgellm` is a function that shows its arguments.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>

#include "tests/apps/program.h"
#include "tests/support/skip.h"

namespace edgellm::test {
namespace {

bool is_installed(const std::string& shell) {
  return std::system((shell + " -c : >/dev/null 2>&1").c_str()) == 0;
}

std::string script_of(const std::string& shell) {
  const Result result = run({"completion", shell});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  return result.out;
}

// A folder with what there is to complete, and the script.
struct Workplace {
  TempDir folder;

  explicit Workplace(const std::string& shell) {
    write_file(folder, "script", script_of(shell));
    write_file(folder, "story.tmac2", "");
    write_file(folder, "two words.tmac2", "");
    write_file(folder, "notes.txt", "");
    write_file(folder, "ids.json", "");
    std::filesystem::create_directories(folder.path() / "bitnet-folder");
    std::filesystem::create_directories(folder.path() / "models");
    write_file(folder, "models/named.tmac2", "");
  }
};

// An interactive shell in a terminal, in the workplace's folder.
class Shell {
 public:
  Shell(const Workplace& workplace, const std::vector<std::string>& args,
        const std::string& setup) {
    winsize size = {.ws_row = 60, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      std::vector<char*> argv;
      for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
      argv.push_back(nullptr);
      setenv("EDGELLM_MODELS", (workplace.folder / "models").c_str(), 1);
      setenv("HOME", workplace.folder.path().c_str(), 1);
      setenv("TERM", "dumb", 1);
      if (chdir(workplace.folder.path().c_str()) == 0) execvp(argv[0], argv.data());
      _exit(127);
    }
    type(setup + "\nedgellm() { printf '<%s>' \"$@\"; echo; }; echo rea''dy\n");
    wait_for("ready\r\n");
  }
  ~Shell() {
    close(terminal_);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  // What the line becomes by Tab, as the arguments it then has: "<run><--json>".
  std::string complete(const std::string& line) {
    type("edgellm " + line + "\t");
    usleep(200'000);  // the shell reads what comes after Tab only when it is done
    type("\n");
    wait_for(">\r\n");
    const size_t end = seen_.rfind(">\r\n");
    const size_t begin = seen_.rfind('\n', end) + 1;
    const std::string arguments = seen_.substr(begin, end + 1 - begin);
    seen_.clear();
    return arguments.substr(arguments.rfind('\r') + 1);
  }

 private:
  void type(const std::string& keys) {
    REQUIRE(write(terminal_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
  }
  void wait_for(const std::string& text) {
    while (seen_.find(text) == std::string::npos) {
      pollfd waiting = {.fd = terminal_, .events = POLLIN, .revents = 0};
      char buffer[4096];
      INFO("seen so far: " << seen_);
      REQUIRE(poll(&waiting, 1, 20'000) == 1);
      const ssize_t n = read(terminal_, buffer, sizeof buffer);
      REQUIRE(n > 0);
      seen_.append(buffer, static_cast<size_t>(n));
    }
  }

  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string seen_;
};

// What bash and zsh make of a line alike.
void check_completions(Shell& shell) {
  CHECK(shell.complete("tok") == "<tokenize>");
  CHECK(shell.complete("--vers") == "<--version>");
  CHECK(shell.complete("run --kv-type i1") == "<run><--kv-type><i16>");
  CHECK(shell.complete("run --device cp") == "<run><--device><cpu>");
  CHECK(shell.complete("run m --ignore") == "<run><m><--ignore-eos>");
  CHECK(shell.complete("completion fi") == "<completion><fish>");
  CHECK(shell.complete("help env") == "<help><environment>");
  CHECK(shell.complete("synth smol") == "<synth><smollm-135m>");
  // Models: files and names.
  CHECK(shell.complete("run st") == "<run><story.tmac2>");
  CHECK(shell.complete("run nam") == "<run><named>");
  CHECK(shell.complete("run two") == "<run><two words.tmac2>");
  CHECK(shell.complete("run --threads 2 st") == "<run><--threads><2><story.tmac2>");
  CHECK(shell.complete("tokenize ids") == "<tokenize><ids.json>");
  // Files of a kind, any files, folders.
  CHECK(shell.complete("run m --ids-file id") == "<run><m><--ids-file><ids.json>");
  CHECK(shell.complete("run m -f not") == "<run><m><-f><notes.txt>");
  CHECK(shell.complete("convert bitn").starts_with("<convert><bitnet-folder"));
  CHECK(shell.complete("help --man-pages mod").starts_with("<help><--man-pages><models"));
  // After its positionals a command takes options only.
  CHECK(shell.complete("info story.tmac2 not") == "<info><story.tmac2><not>");
}

TEST_CASE("completion in bash") {
  const Workplace workplace("bash");
  Shell shell(workplace, {"bash", "--norc", "--noprofile", "-i"},
              "PS1='$ '; bind 'set bell-style none'; source ./script");
  check_completions(shell);
  // Other files are not offered; zsh offers them where there is nothing better.
  CHECK(shell.complete("run not") == "<run><not>");
  CHECK(shell.complete("run m --ids-file not") == "<run><m><--ids-file><not>");
  CHECK(shell.complete("run two\\ w") == "<run><two words.tmac2>");
  CHECK(shell.complete("run \"two w") == "<run><two words.tmac2>");
  // bash makes three words of this one.
  CHECK(shell.complete("run m --kv-type=f3") == "<run><m><--kv-type=f32>");
  CHECK(shell.complete("run m --file=not") == "<run><m><--file=notes.txt>");
  CHECK(shell.complete("run ~/st") == "<run><" + (workplace.folder / "story.tmac2") + ">");
  CHECK(shell.complete("run m --file=notes.txt --js") == "<run><m><--file=notes.txt><--json>");
}

TEST_CASE("bash lists every command and every option of each") {
  const TempDir folder;
  const std::string script = write_file(folder, "script", script_of("bash"));
  const auto listed = [&](const std::string& words, int n) {
    const std::string out = folder / "out";
    const std::string command = "bash -c 'source \"" + script + "\"; COMP_WORDS=(edgellm " + words +
                                "); COMP_CWORD=" + std::to_string(n) +
                                "; _edgellm; printf \"%s\\n\" \"${COMPREPLY[@]}\"' >'" + out + "'";
    CHECK(std::system(command.c_str()) == 0);
    return "\n" + read_file(out);
  };
  const std::string commands = listed("''\"\"''", 1);
  std::istringstream names(commands);
  int n = 0;
  for (std::string name; names >> name; ++n) {
    const Result help = run({name, "--help"});
    INFO(name);
    REQUIRE(help.exit_code == 0);
    const std::string options = listed(name + " --", 2);
    std::istringstream lines(help.out.substr(help.out.find("\nOptions:")));
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("--");
      if (!line.starts_with("  -") || at > 6) continue;
      const std::string option = line.substr(at, line.find_first_of(" ,", at) - at);
      INFO(option);
      CHECK(options.find("\n" + option + "\n") != std::string::npos);
    }
  }
  CHECK(n > 10);
}

TEST_CASE("completion in zsh") {
  if (!is_installed("zsh")) {
    skip("no zsh");
    return;
  }
  const Workplace workplace("zsh");
  Shell shell(workplace, {"zsh", "-f", "-i"},
              "PS1='$ '; unsetopt zle_bracketed_paste beep 2>/dev/null; autoload -Uz compinit; "
              "compinit -u -D; setopt no_list_ambiguous no_auto_menu; source ./script");
  check_completions(shell);
  CHECK(shell.complete("run m --kv-type=f3") == "<run><m><--kv-type=f32>");
}

TEST_CASE("completion in fish") {
  if (!is_installed("fish")) {
    skip("no fish");
    return;
  }
  const Workplace workplace("fish");
  const auto listed = [&](const std::string& line) {
    const std::string out = workplace.folder / "out";
    const std::string command =
        "cd '" + workplace.folder.path().string() +
        "' && HOME=$PWD EDGELLM_MODELS=$PWD/models fish --no-config -c 'source script; "
        "complete -C \"edgellm " +
        line + "\"' >'" + out + "' 2>&1 </dev/null";
    INFO(command);
    CHECK(std::system(command.c_str()) == 0);
    return "\n" + read_file(out);
  };
  const auto offers = [&](const std::string& line, const std::string& word) {
    const std::string all = listed(line);
    INFO(line << ":" << all);
    CHECK((all.find("\n" + word + "\n") != std::string::npos ||
           all.find("\n" + word + "\t") != std::string::npos));
  };
  const auto offers_not = [&](const std::string& line, const std::string& word) {
    const std::string all = listed(line);
    INFO(line << ":" << all);
    CHECK(all.find("\n" + word) == std::string::npos);
  };
  offers("tok", "tokenize");
  offers("--vers", "--version");
  offers("run --kv-type i1", "i16");
  offers("run --device cp", "cpu");
  offers("run m --max-t", "--max-tokens");
  offers("help env", "environment");
  offers("synth smol", "smollm-135m");
  offers("run st", "story.tmac2");
  offers("run nam", "named");
  offers("run --threads 2 st", "story.tmac2");
  offers("run m --ids-file id", "ids.json");
  offers("run m -f not", "notes.txt");
  offers("convert bitn", "bitnet-folder/");
  offers("help --man-pages mod", "models/");
  offers_not("run --kv-type ", "auto");
  offers_not("info story.tmac2 st", "story");
  offers_not("run ", "run");
}

}  // namespace
}  // namespace edgellm::test
