#include "apps/cli/program.h"

#include <CLI/CLI.hpp>

#include "apps/common/near_matches.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm {
namespace {

// ---- CLI11's tree of options --------------------------------------------------------------------

OptionInfo option_info(const CLI::Option& option) {
  OptionInfo info;
  info.description = option.get_description();
  info.required = option.get_required();
  // Options that are given several times are vectors; a single value has at most one item.
  info.repeatable = option.get_items_expected_max() > 1;
  const std::string& text = option.get_option_text();
  if (option.get_positional()) {
    info.names = {option.get_name(/*positional=*/true)};
    info.value = text.empty() ? info.names.front() : text;
    return info;
  }
  for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  if (option.get_items_expected_max() > 0 && !text.empty()) info.value = text;
  return info;
}

OptionGroup& group_of(CommandInfo& command, const std::string& title) {
  for (OptionGroup& group : command.groups) {
    if (group.title == title) return group;
  }
  command.groups.push_back({title, {}});
  return command.groups.back();
}

CommandInfo command_info(const CLI::App& app) {
  CommandInfo info;
  info.name = app.get_name();
  info.description = app.get_description();
  info.examples = app.get_footer();
  info.groups.push_back({"Options", {}});
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    if (option->get_positional()) {
      info.positionals.push_back(option_info(*option));
    } else {
      group_of(info, option->get_group()).options.push_back(option_info(*option));
    }
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) info.commands.push_back(command_info(*command));
  }
  return info;
}

// ---- What is wrong with a command line ----------------------------------------------------------

std::string unknown_command(const CommandInfo& program, const std::string& word) {
  std::vector<std::string> names;
  for (const CommandInfo& command : program.commands) names.push_back(command.name);
  return "unknown command " + word + did_you_mean(word, names) + "; the commands are " +
         join(names, ", ");
}

// The long names: one letter more or less makes any short option into another.
std::vector<std::string> long_option_names(const CommandInfo& command) {
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
      message = "unknown option " + name + did_you_mean(name, long_option_names(info));
    } else if (command != nullptr && !info.positionals.empty()) {
      message += "; a text of several words needs quotes";
    }
  }
  return message + "; see " + info.full_name() + " --help";
}

}  // namespace

Program::Program(const std::string& description, const std::string& examples)
    : app_(std::make_unique<CLI::App>(description, "edgellm")), root_(*app_) {
  app_->footer(examples);
  app_->set_help_flag("-h,--help", "Print this help and exit");
  app_->require_subcommand(0, 1);
}

Program::~Program() = default;

Command& Program::add(const std::string& name, const std::string& description,
                      const std::string& examples) {
  CLI::App* const app = app_->add_subcommand(name, description);
  app->footer(examples);
  return commands_.emplace_back(*app);
}

Program::Request Program::parse(const std::vector<std::string>& arguments) {
  Request request;
  try {
    // CLI11 takes them from the back.
    app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    request.help = true;
  } catch (const CLI::ParseError& error) {
    throw Error(ExitCode::kUsage, usage_message(*app_, error, arguments));
  }
  for (const Command& command : commands_) {
    if (command.app_->parsed()) request.command = &command;
  }
  return request;
}

CommandInfo Program::info() const { return command_info(*app_); }

CommandInfo Program::info(const Command& command) const { return command_info(*command.app_); }

CommandInfo Program::info(const std::string& name) const {
  return command_info(*app_->get_subcommand(name));
}

}  // namespace edgellm
