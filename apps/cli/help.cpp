#include "apps/cli/help.h"

#include <vector>

#include "apps/common/text_format.h"
#include "base/text.h"

namespace edgellm {
namespace {

// Wide enough for most headings; a longer one gets a line of its own.
constexpr size_t kHeadingColumns = 26;

std::vector<std::string> command_names(const CommandInfo& program) {
  std::vector<std::string> names;
  for (const CommandInfo& command : program.commands) names.push_back(command.name);
  return names;
}

std::string entries(const std::vector<OptionInfo>& options, size_t width) {
  std::string text;
  for (const OptionInfo& option : options) {
    text += definition(option_heading(option), option.description, kHeadingColumns, width);
  }
  return text;
}

}  // namespace

std::string option_heading(const OptionInfo& option) {
  std::string heading = join(option.names, ", ");
  const bool is_positional = !option.names.front().starts_with('-');
  if (is_positional || option.value.empty()) return heading;
  constexpr size_t kMostColumns = 76;
  if (heading.size() + 1 + option.value.size() <= kMostColumns) return heading + " " + option.value;
  // So many values that the description lists them: "--shape SHAPE".
  std::string name = option.names.back().substr(2);
  for (char& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return heading + " " + name;
}

std::string usage_line(const CommandInfo& command) {
  std::string line = command.full_name();
  if (!command.commands.empty()) return line + " COMMAND [OPTIONS]";
  line += " [OPTIONS]";
  for (const OptionInfo& option : command.positionals) {
    const std::string name = option.names.front() + (option.repeatable ? "..." : "");
    line += option.required ? " " + name : " [" + name + "]";
  }
  for (const OptionGroup& group : command.groups) {
    for (const OptionInfo& option : group.options) {
      if (option.required) line += " " + option.names.front() + " " + option.value;
    }
  }
  return line;
}

std::string short_help(const CommandInfo& program) {
  return "edgellm runs BitNet b1.58 (ternary-weight) language models.\n\n" + program.examples +
         "\n\n" + wrapped("Commands: " + join(command_names(program), ", ") + ".", 80, 10) +
         "Details:  edgellm --help, edgellm COMMAND --help, edgellm help environment\n";
}

std::string help_text(const CommandInfo& command, size_t width) {
  std::string text = wrapped(command.description, width, 0) + "\nExamples:\n" + command.examples +
                     "\n\nUsage: " + usage_line(command) + "\n";
  if (!command.commands.empty()) {
    text += "\nCommands:\n";
    for (const CommandInfo& sub : command.commands) {
      text += definition(sub.name, sub.description, kHeadingColumns, width);
    }
  }
  if (!command.positionals.empty()) text += "\nArguments:\n" + entries(command.positionals, width);
  for (const OptionGroup& group : command.groups) {
    if (!group.options.empty()) text += "\n" + group.title + ":\n" + entries(group.options, width);
  }
  return text;
}

}  // namespace edgellm
