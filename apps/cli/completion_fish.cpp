// The script for fish: a line of `complete` for each option, and functions that say where on the
// line the cursor stands.
#include "apps/cli/completion.h"
#include "base/text.h"

namespace edgellm {
namespace {

constexpr const char* kFunctions = R"sh(
function __edgellm_models  # names of models in the model folders, and .tmac2 files
    set -l home $XDG_DATA_HOME
    test -n "$home"; or set home $HOME/.local/share
    set -l program (realpath -- (command -v edgellm; or echo /) 2>/dev/null)
    set -l folders (string split -n : -- "$EDGELLM_MODELS") $home/edgellm/models
    for folder in $folders (dirname -- $program)/../share/edgellm/models
        for file in $folder/*.tmac2
            string replace -r '\.tmac2$' '' -- (basename -- $file)
        end
    end
    __fish_complete_suffix .tmac2
end

function __edgellm_command  # the command on the line, if there is one yet
    set -l words (commandline -opc)
    set -e words[1]
    for word in $words
        if not string match -q -- '-*' $word
            echo $word
            return 0
        end
    end
    return 1
end

function __edgellm_in  # COMMAND: is it that of the line?
    test (__edgellm_command; or echo -) = $argv[1]
end

function __edgellm_at  # COMMAND POSITION: is that what is to be typed?
    set -l words (commandline -opc)
    set -e words[1]
    set -l command ''
    set -l position 1
    set -l is_value 0
    for word in $words
        if test $is_value = 1
            set is_value 0
        else if test -z "$command"
            string match -q -- '-*' $word; or set command $word
        else if contains -- "$command $word" $__edgellm_valued
            set is_value 1
        else if not string match -qr -- '^-.' $word
            set position (math $position + 1)
        end
    end
    test "$command" = $argv[1] -a $position = $argv[2] -a $is_value = 0
end

complete -c edgellm -f
)sh";

std::string fish_word(const std::string& text) {
  std::string doubled;
  for (const char c : text) doubled += c == '\\' ? "\\\\" : std::string(1, c);
  return single_quoted(doubled, "\\'");
}

// Arguments of `complete` for a value; `alone` is what an option needs where only these count.
std::string value_arguments(const std::string& value, const char* alone) {
  const ValueChoices choices = value_choices(value);
  std::string candidates = join(choices.words, " ");
  const auto add = [&](const std::string& more) {
    candidates += (candidates.empty() ? "" : " ") + more;
  };
  if (choices.models) add("(__edgellm_models)");
  for (const std::string& ending : choices.endings) {
    if (ending != ".tmac2" || !choices.models) add("(__fish_complete_suffix " + ending + ")");
  }
  if (choices.folders) add("(__fish_complete_directories)");
  const bool any_file = choices.files && choices.endings.empty();
  std::string text = any_file ? " -r -F" : alone;
  if (!candidates.empty()) text += " -a " + fish_word(candidates);
  return text;
}

std::string option_line(const std::string& condition, const OptionInfo& option) {
  std::string line = "complete -c edgellm -n " + fish_word(condition);
  for (const std::string& name : option.names) {
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (!option.value.empty()) line += value_arguments(option.value, " -x");
  return line + " -d " + fish_word(option.description) + "\n";
}

}  // namespace

std::string fish_completion(const CommandInfo& program) {
  const std::string no_command = "not __edgellm_command >/dev/null";
  std::string lines;
  std::string valued;
  for (const OptionInfo& option : all_options(program)) lines += option_line(no_command, option);
  for (const CommandInfo& command : program.commands) {
    lines += "\ncomplete -c edgellm -n " + fish_word(no_command) + " -a " + command.name + " -d " +
             fish_word(command.description) + "\n";
    for (const OptionInfo& option : all_options(command)) {
      lines += option_line("__edgellm_in " + command.name, option);
      if (option.value.empty()) continue;
      for (const std::string& name : option.names) {
        valued += " " + fish_word(command.name + " " + name);
      }
    }
    for (size_t i = 0; i < command.positionals.size(); ++i) {
      const std::string arguments = value_arguments(command.positionals[i].value, "");
      if (arguments.empty()) continue;
      lines += "complete -c edgellm -n " +
               fish_word("__edgellm_at " + command.name + " " + std::to_string(i + 1)) + arguments +
               "\n";
    }
  }
  return "# Completion of edgellm for fish, made by: edgellm completion fish\n\n"
         "set -g __edgellm_valued" +
         valued + "\n" + kFunctions + lines;
}

}  // namespace edgellm
