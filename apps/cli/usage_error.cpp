#include "apps/cli/usage_error.h"

#include "apps/cli/option_tree.h"
#include "apps/common/near_matches.h"
#include "base/text.h"

namespace edgellm {
namespace {

std::string unknown_command(const CommandInfo& program, const std::string& word) {
  std::vector<std::string> names;
  for (const CommandInfo& command : program.commands) names.push_back(command.name);
  return "unknown command " + word + did_you_mean(word, names) + "; the commands are " +
         join(names, ", ");
}

// The long names: one letter more or less makes any short option into another.
std::vector<std::string> option_names(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const OptionGroup& group : command.groups) {
    for (const OptionInfo& option : group.options) {
      for (const std::string& name : option.names) {
        if (name.starts_with("--")) names.push_back(name);
      }
    }
  }
  return names;
}

}  // namespace

std::string usage_message(const CLI::App& root, const CLI::ParseError& error,
                          const std::vector<std::string>& arguments) {
  const auto parsed = root.get_subcommands();
  const CLI::App* const command = parsed.empty() ? nullptr : parsed.front();
  const CommandInfo program = command_info(root);
  if (command == nullptr && !arguments.empty() && !arguments.front().starts_with('-')) {
    return unknown_command(program, arguments.front());
  }
  const CommandInfo info = command != nullptr ? command_info(*command) : program;
  std::string message = error.what();
  const CLI::App& app = command != nullptr ? *command : root;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !app.remaining().empty()) {
    const std::string first = app.remaining().front();
    if (first.starts_with('-')) {
      const std::string name = first.substr(0, first.find('='));
      message = "unknown option " + name + did_you_mean(name, option_names(info));
    } else if (command != nullptr && !info.positionals.empty()) {
      message += "; a text of several words needs quotes";
    }
  }
  return message + "; see " + info.full_name() + " --help";
}

}  // namespace edgellm
