// The script for bash: functions with one case per option, and one that finds out where on the
// line the cursor stands. Written for bash 4.4 and newer, without the package bash-completion.
#include "apps/cli/completion.h"
#include "base/text.h"

namespace edgellm {
namespace {

constexpr const char* kBashHead =
    R"sh(# Completion of edgellm for bash, made by: edgellm completion bash

_edgellm_words() {  # WORD CANDIDATES
  local -a found
  mapfile -t found < <(compgen -W "$2" -- "$1")
  COMPREPLY+=("${found[@]}")
}

_edgellm_folders() {  # WORD
  local -a found
  compopt -o filenames 2>/dev/null
  mapfile -t found < <(compgen -d -- "$1")
  COMPREPLY+=("${found[@]}")
}

_edgellm_files() {  # WORD [ENDING...]: any file, or those with one of the endings and folders
  local -a found
  local word=$1 ending
  shift
  compopt -o filenames 2>/dev/null
  if (($# == 0)); then
    mapfile -t found < <(compgen -f -- "$word")
  else
    mapfile -t found < <(
      compgen -d -- "$word"
      for ending in "$@"; do compgen -f -X "!*$ending" -- "$word"; done
    )
  fi
  COMPREPLY+=("${found[@]}")
}

_edgellm_models() {  # WORD: names of models in the model folders
  local folder file program
  local -a folders
  IFS=: read -r -a folders <<<"${EDGELLM_MODELS-}"
  program=$(readlink -f -- "$(type -P edgellm)")
  folders+=("${XDG_DATA_HOME:-$HOME/.local/share}/edgellm/models"
    "${program%/*}/../share/edgellm/models")
  for folder in "${folders[@]}"; do
    for file in "$folder/"*.tmac2; do
      [[ -n $folder && -e $file ]] || continue
      file=${file##*/}
      [[ ${file%.tmac2} == "$1"* ]] && COMPREPLY+=("${file%.tmac2}")
    done
  done
}
)sh";

constexpr const char* kMain = R"sh(
_edgellm() {
  local word=${COMP_WORDS[COMP_CWORD]} option='' command='' position=1 i
  COMPREPLY=()
  # bash cuts "--option=value" in three.
  if [[ $word == '=' ]]; then
    option=${COMP_WORDS[COMP_CWORD - 1]}
    word=''
  elif ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[COMP_CWORD - 1]} == '=' ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  fi

  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ -z $command ]]; then
      [[ ${COMP_WORDS[i]} == -* ]] || command=${COMP_WORDS[i]}
    elif _edgellm_takes_value "$command ${COMP_WORDS[i]}"; then
      ((i + 1 == COMP_CWORD)) && [[ -z $option ]] && option=${COMP_WORDS[i]}
      [[ ${COMP_WORDS[i + 1]} == '=' ]] && ((++i))
      ((++i))
    elif [[ ${COMP_WORDS[i]} != -?* ]]; then
      ((++position))
    fi
  done

  if [[ -n $option ]]; then
    _edgellm_value "$command $option" "$word"
  elif [[ $word == -* ]]; then
    _edgellm_words "$word" "$(_edgellm_options "$command")"
  elif [[ -z $command ]]; then
    _edgellm_words "$word" "$_edgellm_commands"
  elif ! _edgellm_value "$command $position" "$word" && [[ -z $word ]]; then
    _edgellm_words '' "$(_edgellm_options "$command")"
  fi
}

complete -F _edgellm edgellm
)sh";

// Commands that add what a value may be; nothing where there is nothing to complete.
std::string bash_actions(const ValueChoices& choices) {
  std::string text;
  if (!choices.words.empty()) {
    text += " _edgellm_words \"$2\" " + shell_word(join(choices.words, " ")) + ";";
  }
  if (choices.models) text += " _edgellm_models \"$2\";";
  if (choices.files) {
    text += " _edgellm_files \"$2\"";
    for (const std::string& ending : choices.endings) text += " " + shell_word(ending);
    text += ";";
  }
  if (choices.folders) text += " _edgellm_folders \"$2\";";
  return text;
}

// "'run -n'|'run --max-tokens'": the option in a pattern of `case`.
std::string pattern(const CommandInfo& command, const OptionInfo& option) {
  std::vector<std::string> words;
  for (const std::string& name : option.names)
    words.push_back(shell_word(command.name + " " + name));
  return join(words, "|");
}

}  // namespace

std::string bash_completion(const CommandInfo& program) {
  std::string commands;
  std::string options;
  std::string takes_value;
  std::string values;
  const auto add_options = [&](const CommandInfo& command, const std::string& name) {
    std::string names;
    for (const OptionInfo& option : all_options(command)) {
      names += (names.empty() ? "" : " ") + join(option.names, " ");
      if (option.value.empty()) continue;
      takes_value += "    " + pattern(command, option) + ") return 0 ;;\n";
      const std::string action = bash_actions(value_choices(option.value));
      if (!action.empty()) values += "    " + pattern(command, option) + ")" + action + ";\n";
    }
    options += "    " + shell_word(name) + ") echo " + shell_word(names) + " ;;\n";
  };
  add_options(program, "");
  for (const CommandInfo& command : program.commands) {
    commands += (commands.empty() ? "" : " ") + command.name;
    add_options(command, command.name);
    for (size_t i = 0; i < command.positionals.size(); ++i) {
      const std::string action = bash_actions(value_choices(command.positionals[i].value));
      if (action.empty()) continue;
      values +=
          "    " + shell_word(command.name + " " + std::to_string(i + 1)) + ")" + action + ";\n";
    }
  }
  return std::string(kBashHead) + "\n_edgellm_commands=" + shell_word(commands) +
         "\n\n_edgellm_options() {  # COMMAND\n  case $1 in\n" + options +
         "  esac\n}\n\n_edgellm_takes_value() {  # \"COMMAND OPTION\"\n  case $1 in\n" +
         takes_value +
         "  esac\n  return 1\n}\n\n# \"COMMAND OPTION\" or \"COMMAND POSITION\", WORD; "
         "fails where nothing is known of the value.\n_edgellm_value() {\n  case $1 in\n" +
         values + "    *) return 1 ;;\n  esac\n}\n" + kMain;
}

}  // namespace edgellm
