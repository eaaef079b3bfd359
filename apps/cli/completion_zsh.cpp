// The script for zsh: specifications for _arguments, which does the work.
#include <map>

#include "apps/cli/completion.h"
#include "base/text.h"

namespace edgellm {
namespace {

constexpr const char* kZshHead = R"sh(#compdef edgellm
# Completion of edgellm for zsh, made by: edgellm completion zsh

_edgellm_models() {  # names of models in the model folders
  local -a folders names
  folders=(${(s.:.)EDGELLM_MODELS} ${XDG_DATA_HOME:-$HOME/.local/share}/edgellm/models
    ${commands[edgellm]:A:h}/../share/edgellm/models)
  names=(${^folders}/*.tmac2(N:t:r))
  compadd "$@" -a names
}
)sh";

// With a backslash before each of `special`, which would end a part of a specification.
std::string escaped(const std::string& text, const std::string& special) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string::npos) result += '\\';
    result += c;
  }
  return result;
}

// What to do for a value, as _arguments and _alternative take it.
std::vector<std::string> zsh_actions(const ValueChoices& choices) {
  std::vector<std::string> all;
  if (!choices.words.empty()) all.push_back("(" + join(choices.words, " ") + ")");
  if (choices.models) all.emplace_back("_edgellm_models");
  if (choices.files && choices.endings.empty()) all.emplace_back("_files");
  for (const std::string& ending : choices.endings) {
    all.push_back("_files -g \"*" + ending + "\"");
  }
  if (choices.folders) all.emplace_back("_files -/");
  return all;
}

class Script {
 public:
  std::string make(const CommandInfo& program);

 private:
  std::string action(const std::string& value);
  std::string specifications(const CommandInfo& command, const std::string& indent);

  std::map<std::string, std::string> mixed_;  // value -> function that offers several kinds
  std::string functions_;
};

std::string Script::action(const std::string& value) {
  const std::vector<std::string> all = zsh_actions(value_choices(value));
  if (all.empty()) return " ";
  if (all.size() == 1) return all.front();
  const auto [entry, is_new] =
      mixed_.emplace(value, "_edgellm_value_" + std::to_string(mixed_.size() + 1));
  if (is_new) {
    functions_ += "\n" + entry->second + "() {\n  _alternative";
    for (size_t i = 0; i < all.size(); ++i) {
      functions_ += " \\\n    " + shell_word("kind" + std::to_string(i + 1) + ":value:" + all[i]);
    }
    functions_ += "\n}\n";
  }
  return entry->second;
}

std::string Script::specifications(const CommandInfo& command, const std::string& indent) {
  std::string text;
  for (const OptionInfo& option : all_options(command)) {
    const std::string names = join(option.names, " ");
    std::vector<std::string> forms;
    for (const std::string& name : option.names) {
      const char* const suffix = option.value.empty() ? "" : name.starts_with("--") ? "=" : "+";
      forms.push_back(name + suffix);
    }
    const std::string before = option.repeatable ? "'*'" : shell_word("(" + names + ")");
    const std::string form = forms.size() == 1 ? forms.front() : "{" + join(forms, ",") + "}";
    std::string after = "[" + escaped(option.description, "[]\\") + "]";
    if (!option.value.empty()) {
      after += ":" + escaped(option.value, ":\\") + ":" + action(option.value);
    }
    text += " \\\n" + indent + before + form + shell_word(after);
  }
  // A last one with nothing to offer stays out: with it zsh would list an option that is begun
  // there instead of completing it.
  size_t n = command.positionals.size();
  while (n > 0 && zsh_actions(value_choices(command.positionals[n - 1].value)).empty()) --n;
  for (size_t i = 0; i < n; ++i) {
    const OptionInfo& option = command.positionals[i];
    text += " \\\n" + indent +
            shell_word(std::to_string(i + 1) + (option.required ? ":" : "::") +
                       option.names.front() + ":" + action(option.value));
  }
  return text;
}

std::string Script::make(const CommandInfo& program) {
  std::string commands;
  std::string cases;
  for (const CommandInfo& command : program.commands) {
    commands +=
        "        " + shell_word(command.name + ":" + escaped(command.description, ":\\")) + "\n";
    cases += "        " + command.name + ")\n          _arguments -s" +
             specifications(command, "            ") + " && ret=0\n          ;;\n";
  }
  const std::string main =
      "\n_edgellm() {\n"
      "  local context curcontext=$curcontext state line ret=1\n"
      "  typeset -A opt_args\n"
      "  _arguments -C -s" +
      specifications(program, "    ") +
      " \\\n    '1:command:->command' \\\n    '(-)*::argument:->argument' && ret=0\n"
      "  case $state in\n"
      "    command)\n"
      "      local -a commands=(\n" +
      commands +
      "      )\n"
      "      _describe command commands && ret=0\n"
      "      ;;\n"
      "    argument)\n"
      "      case $line[1] in\n" +
      cases +
      "      esac\n"
      "      ;;\n"
      "  esac\n"
      "  return ret\n"
      "}\n"
      "\n"
      "# Loaded by compinit as a function, or sourced.\n"
      "if [[ $funcstack[1] == _edgellm ]]; then\n"
      "  _edgellm \"$@\"\n"
      "else\n"
      "  compdef _edgellm edgellm\n"
      "fi\n";
  return kZshHead + functions_ + main;
}

}  // namespace

std::string zsh_completion(const CommandInfo& program) { return Script().make(program); }

}  // namespace edgellm
