#include "apps/cli/option_tree.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "apps/common/near_matches.h"
#include "base/text.h"

namespace edgellm {
namespace {

// An option_text() of a blank keeps CLI11 quiet; it says nothing about the value.
bool is_blank(const std::string& text) { return text.find_first_not_of(' ') == std::string::npos; }

OptionInfo option_info(const CLI::Option& option) {
  OptionInfo info;
  info.description = option.get_description();
  info.required = option.get_required();
  // Options that are given several times are vectors; a single value has at most one item.
  info.repeatable = option.get_items_expected_max() > 1;
  const std::string& text = option.get_option_text();
  if (option.get_positional()) {
    info.names = {option.get_name(/*positional=*/true)};
    info.value = is_blank(text) ? info.names.front() : text;
    return info;
  }
  for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  if (option.get_items_expected_max() > 0 && !is_blank(text)) info.value = text;
  return info;
}

OptionGroup& group_of(CommandInfo& command, const std::string& title) {
  for (OptionGroup& group : command.groups) {
    if (group.title == title) return group;
  }
  command.groups.push_back({title, {}});
  return command.groups.back();
}

}  // namespace

std::string CommandInfo::full_name() const { return name == "edgellm" ? name : "edgellm " + name; }

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

ValueChoices value_choices(const std::string& value) {
  ValueChoices choices;
  std::istringstream pieces(value);
  for (std::string piece; std::getline(pieces, piece, '|');) {
    const size_t dot = piece.find('.');
    const std::string stem = piece.substr(0, dot);
    if (stem == "FILE" || stem == "OUT" || piece == "SRC") {
      choices.files = true;
      if (dot != std::string::npos) choices.endings.push_back(piece.substr(dot));
    } else if (piece == "DIR") {
      choices.folders = true;
    } else if (piece == "MODEL") {
      choices.models = true;
      choices.files = true;
      choices.endings.emplace_back(".tmac2");
    } else if (std::none_of(piece.begin(), piece.end(),
                            [](unsigned char c) { return std::isupper(c) != 0; })) {
      choices.words.push_back(piece);
    }
  }
  return choices;
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  const auto check = [words](const std::string& value) {
    if (std::find(words.begin(), words.end(), value) != words.end()) return std::string();
    return "'" + value + "' is not one of " + join(words, ", ") + did_you_mean(value, words);
  };
  return {check, ""};
}

}  // namespace edgellm
