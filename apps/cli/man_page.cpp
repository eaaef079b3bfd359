#include "apps/cli/man_page.h"

#include <cctype>
#include <filesystem>
#include <vector>

#include "apps/cli/help.h"
#include "apps/cli/help_topics.h"
#include "apps/common/version.h"
#include "base/output_file.h"

namespace edgellm {
namespace {

// Text as roff prints it: no escapes, no hyphens for minus signs, no requests at the start of a
// line.
std::string escaped(const std::string& text) {
  std::string result;
  bool at_start = true;
  for (const char c : text) {
    if (at_start && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    at_start = c == '\n';
  }
  return result;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }

std::string page_name(const CommandInfo& command) {
  return command.name == "edgellm" ? command.name : "edgellm-" + command.name;
}

std::string section(const std::string& title, const std::string& body) {
  std::string upper;
  for (const char c : title) upper += static_cast<char>(std::toupper(c));
  return ".SH " + upper + "\n" + body;
}

// Terms with their explanations.
std::string entry(const std::string& heading, const std::string& text) {
  return ".TP\n" + heading + "\n" + escaped(text) + "\n";
}

std::string option_entries(const std::vector<OptionInfo>& options) {
  std::string text;
  for (const OptionInfo& option : options) {
    std::string heading;
    for (const std::string& name : option.names) {
      heading += (heading.empty() ? "" : ", ") + bold(name);
    }
    const bool is_positional = !option.names.front().starts_with('-');
    if (!is_positional && !option.value.empty()) {
      heading += " \\fI" + escaped(option.value) + "\\fR";
    }
    text += entry(heading, option.description);
  }
  return text;
}

std::string exit_codes() {
  std::string text;
  for (const ExitStatus& status : exit_statuses()) {
    text += entry(bold(status.codes), status.meaning);
  }
  return text;
}

std::string environment() {
  std::string text;
  for (const EnvironmentVariable& variable : environment_variables()) {
    text += entry(bold(variable.name), variable.meaning);
  }
  return text;
}

std::string see_also(const CommandInfo& command, const CommandInfo& program) {
  std::vector<std::string> pages;
  if (command.name != program.name) pages.push_back("edgellm");
  for (const CommandInfo& other : program.commands) {
    if (other.name != command.name) pages.push_back(page_name(other));
  }
  std::string text;
  for (const std::string& page : pages) {
    text += ".BR " + escaped(page) + " (1)" + (page == pages.back() ? "\n" : ",\n");
  }
  return text;
}

std::string first_lower(std::string text) {
  text[0] = static_cast<char>(std::tolower(text[0]));
  return text;
}

}  // namespace

std::string man_page(const CommandInfo& command, const CommandInfo& program) {
  const bool is_program = command.name == program.name;
  std::string upper;
  for (const char c : page_name(command)) upper += static_cast<char>(std::toupper(c));
  std::string page =
      ".\\\" Made by: edgellm help --man\n"
      ".TH " +
      escaped(upper) + " 1 \"\" \"edgellm " + build_info().version + "\" \"User Commands\"\n" +
      section("name", escaped(page_name(command)) + " \\- " +
                          escaped(first_lower(command.description)) + "\n") +
      section("synopsis", bold(command.full_name()) +
                              escaped(usage_line(command).substr(command.full_name().size())) +
                              "\n");
  std::string description = escaped(command.description) + ".\n";
  if (is_program) {
    description +=
        ".PP\nA model is a .tmac2 file, which\n.BR edgellm\\-convert (1)\nmakes. Text and JSON go "
        "to standard output; notes, progress and errors go to standard error.\n";
  }
  page += section("description", description);
  if (is_program) {
    std::string commands;
    for (const CommandInfo& sub : command.commands) {
      commands += entry(bold(sub.name), sub.description + ".");
    }
    page += section("commands", commands);
  }
  if (!command.positionals.empty()) {
    page += section("arguments", option_entries(command.positionals));
  }
  for (const OptionGroup& group : command.groups) {
    if (!group.options.empty()) page += section(group.title, option_entries(group.options));
  }
  if (is_program) page += section("environment", environment());
  if (is_program) {
    page += section(
        "files",
        entry("\\fI~/.local/share/edgellm/models\\fR",
              "The user's model folder, where a MODEL that is not a path is searched for.") +
            entry("\\fIPREFIX/share/edgellm/models\\fR",
                  "Models that were installed with the program, searched last."));
  }
  page += section("exit status", is_program ? exit_codes()
                                            : "0 on success; the other codes are listed in\n"
                                              ".BR edgellm (1).\n");
  page += section("examples", ".nf\n" + escaped(command.examples) + "\n.fi\n");
  return page + section("see also", see_also(command, program));
}

void write_man_pages(const CommandInfo& program, const std::string& folder) {
  std::vector<CommandInfo> all = program.commands;
  all.push_back(program);
  for (const CommandInfo& command : all) {
    const std::filesystem::path path = std::filesystem::path(folder) / (page_name(command) + ".1");
    write_file(path.string(), man_page(command, program));
  }
}

}  // namespace edgellm
