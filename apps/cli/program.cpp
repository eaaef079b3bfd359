#include "apps/cli/program.h"

#include <algorithm>
#include <span>

#include "apps/cli/command_line.h"
#include "apps/cli/help.h"
#include "apps/common/near_matches.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm {
namespace {

using Takes = OptionSpec::Takes;

OptionInfo option_info(const OptionSpec& spec) {
  OptionInfo info;
  info.names = spec.names;
  info.description = spec.description;
  info.required = spec.required;
  info.repeatable = spec.takes == Takes::kEach || spec.takes == Takes::kMany;
  info.value = spec.is_positional() && spec.value.empty() ? spec.name() : spec.value;
  return info;
}

OptionGroup& group_of(CommandInfo& command, const std::string& title) {
  for (OptionGroup& group : command.groups) {
    if (group.title == title) return group;
  }
  command.groups.push_back({title, {}});
  return command.groups.back();
}

CommandInfo command_info(const Command& command) {
  CommandInfo info;
  info.name = command.name();
  info.description = command.description();
  info.examples = command.examples();
  info.groups.push_back({"Options", {}});
  for (const OptionSpec& spec : command.specs()) {
    if (spec.is_positional()) {
      info.positionals.push_back(option_info(spec));
    } else {
      group_of(info, spec.group).options.push_back(option_info(spec));
    }
  }
  return info;
}

// What other programs call a command that edgellm has under another name, or has not.
std::string advice_for_foreign_command(const std::string& word) {
  static const std::map<std::string, std::string> advice = {
      {"server", "edgellm serve answers requests over HTTP"},
      {"push", "edgellm uploads nothing"},
      {"ps", "no model stays loaded between two commands; edgellm list shows the models there are"},
      {"stop", "no model stays loaded between two commands"},
      {"create", "edgellm convert makes a model file"},
      {"generate", "edgellm run continues a prompt"},
      {"complete", "edgellm run continues a prompt"},
  };
  const auto found = advice.find(word);
  return found == advice.end() ? "" : "; " + found->second;
}

}  // namespace

Program::Program(const std::string& description, const std::string& examples)
    : root_("edgellm", description, examples) {}

Command& Program::add(const std::string& name, const std::string& description,
                      const std::string& examples) {
  return commands_.emplace_back(name, description, examples);
}

const Command* Program::find(const std::string& name) const {
  const auto alias = aliases_.find(name);
  const std::string& known = alias == aliases_.end() ? name : alias->second;
  const auto found = std::find_if(commands_.begin(), commands_.end(),
                                  [&](const Command& command) { return command.name() == known; });
  return found == commands_.end() ? nullptr : &*found;
}

Program::Request Program::parse(const std::vector<std::string>& arguments) {
  Request request;
  // Options of the program itself take no values: the first other word is the command.
  const auto name = std::find_if(arguments.begin(), arguments.end(),
                                 [](const std::string& word) { return !word.starts_with('-'); });
  const std::span<const std::string> own(arguments.begin(), name);
  request.help = read_words(root_, own, "edgellm", usage_line(info())) == Asked::kHelp;
  if (request.help || name == arguments.end()) return request;

  request.command = find(*name);
  if (request.command == nullptr) {
    std::vector<std::string> names;
    for (const Command& command : commands_) names.push_back(command.name());
    const std::string advice = advice_for_foreign_command(*name);
    const std::string near = did_you_mean(*name, names);
    throw Error(ExitCode::kUsage,
                "unknown command " + printable_path(*name) +
                    (!advice.empty() ? advice
                     : !near.empty() ? near
                                     : "; the commands are " + join(names, ", ")));
  }
  const CommandInfo command = info(*request.command);
  const std::span<const std::string> words(name + 1, arguments.end());
  request.help =
      read_words(*request.command, words, command.full_name(), usage_line(command)) == Asked::kHelp;
  return request;
}

CommandInfo Program::info() const {
  CommandInfo info = command_info(root_);
  for (const Command& command : commands_) info.commands.push_back(command_info(command));
  return info;
}

CommandInfo Program::info(const Command& command) const { return command_info(command); }

CommandInfo Program::info(const std::string& name) const {
  const Command* const command = find(name);
  require(command != nullptr, "Program::info: no command of that name");
  return command_info(*command);
}

}  // namespace edgellm
