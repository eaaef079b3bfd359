// edgellm completion: a script that teaches a shell our commands and options.
#include "apps/cli/completion.h"

#include <memory>

#include "apps/commands.h"
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

Command add_completion(CLI::App& root) {
  CLI::App* app = root.add_subcommand("completion", "Print a completion script for a shell");
  app->footer(
      "  edgellm completion bash > ~/.local/share/bash-completion/completions/edgellm\n"
      "  edgellm completion zsh > \"${fpath[1]}/_edgellm\"\n"
      "  edgellm completion fish > ~/.config/fish/completions/edgellm.fish\n"
      "  source <(edgellm completion bash)\n"
      "Packages and `make install` bring these scripts with them.");
  auto shell = std::make_shared<std::string>();
  app->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(one_of({"bash", "zsh", "fish"}))
      ->option_text("bash|zsh|fish");
  return {app, [&root, shell] {
            const CommandInfo program = command_info(root);
            write_stdout(*shell == "bash"  ? bash_completion(program)
                         : *shell == "zsh" ? zsh_completion(program)
                                           : fish_completion(program));
            return 0;
          }};
}

}  // namespace edgellm
