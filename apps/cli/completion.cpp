// edgellm completion: a script that teaches a shell our commands and options.
#include "apps/cli/completion.h"

#include <memory>

#include "apps/cli/commands.h"
#include "apps/common/terminal.h"

namespace edgellm {

std::vector<OptionInfo> all_options(const CommandInfo& command) {
  std::vector<OptionInfo> options;
  for (const OptionGroup& group : command.groups) {
    options.insert(options.end(), group.options.begin(), group.options.end());
  }
  return options;
}

std::string single_quoted(const std::string& text, const std::string& escape) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string shell_word(const std::string& text) { return single_quoted(text, "'\\''"); }

void add_completion(Program& program) {
  Command& command =
      program.add("completion", "Print a completion script for a shell",
                  "  edgellm completion bash > ~/.local/share/bash-completion/completions/edgellm\n"
                  "  edgellm completion zsh > \"${fpath[1]}/_edgellm\"\n"
                  "  edgellm completion fish > ~/.config/fish/completions/edgellm.fish\n"
                  "  source <(edgellm completion bash)\n"
                  "Packages and `make install` bring these scripts with them.");
  auto shell = std::make_shared<std::string>();
  command.option("SHELL", *shell, "bash, zsh or fish")
      .required()
      .check(one_of({"bash", "zsh", "fish"}))
      .value("bash|zsh|fish");
  command.runs([&program, shell] {
    const CommandInfo info = program.info();
    write_stdout(*shell == "bash"  ? bash_completion(info)
                 : *shell == "zsh" ? zsh_completion(info)
                                   : fish_completion(info));
    return 0;
  });
}

}  // namespace edgellm
