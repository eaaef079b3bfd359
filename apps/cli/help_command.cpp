// edgellm help: the help of a command, and the topics that belong to none.
#include <cstdlib>
#include <memory>

#include "apps/cli/commands.h"
#include "apps/cli/help.h"
#include "apps/cli/help_topics.h"
#include "apps/cli/man_page.h"
#include "apps/cli/option_tree.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "base/text.h"

namespace edgellm {
namespace {

constexpr const char* kEnvironment = "environment";
constexpr const char* kExitCodes = "exit-codes";

std::string environment_text(size_t width) {
  constexpr size_t kColumn = 26;
  std::string text = "Environment variables and their present values:\n\n";
  for (const EnvironmentVariable& variable : environment_variables()) {
    const char* value = std::getenv(variable.name.c_str());
    text += definition(variable.name, variable.meaning, kColumn, width) +
            std::string(kColumn, ' ') +
            (value == nullptr     ? "Not set."
             : variable.is_secret ? "Set (not shown)."
                                  : "Now: " + printable_path(value)) +
            "\n";
  }
  return text;
}

std::string exit_codes_text(size_t width) {
  std::string text = "Exit codes:\n\n";
  for (const ExitStatus& status : exit_statuses()) {
    text += definition(status.codes, status.meaning, 18, width);
  }
  return text;
}

struct HelpFlags {
  std::string topic;
  bool man = false;
  std::string man_folder;
};

int help(const Program& commands, const HelpFlags& flags) {
  const size_t width = help_columns();
  const CommandInfo program = commands.info();
  if (!flags.man_folder.empty()) {
    write_man_pages(program, flags.man_folder);
  } else if (flags.topic == kEnvironment || flags.topic == kExitCodes) {
    // Both are sections of edgellm(1).
    write_stdout(flags.man                     ? man_page(program, program)
                 : flags.topic == kEnvironment ? environment_text(width)
                                               : exit_codes_text(width));
  } else {
    const CommandInfo command = flags.topic.empty() ? program : commands.info(flags.topic);
    write_stdout(flags.man ? man_page(command, program) : help_text(command, width));
  }
  return 0;
}

}  // namespace

void add_help(Program& program) {
  Command& command = program.add("help", "Explain a command or a topic",
                                 "  edgellm help run\n"
                                 "  edgellm help environment\n"
                                 "  edgellm help exit-codes\n"
                                 "  edgellm help run --man | man -l -");
  std::vector<std::string> topics;
  for (const CommandInfo& topic : program.info().commands) topics.push_back(topic.name);
  topics.insert(topics.end(), {kEnvironment, kExitCodes});
  auto flags = std::make_shared<HelpFlags>();
  command.option("TOPIC", flags->topic, "A command, environment or exit-codes")
      .check(one_of(topics))
      .value(join(topics, "|"));
  command.flag("--man", flags->man, "Print a manual page, for man -l -");
  command
      .option("--man-pages", flags->man_folder,
              "Write every manual page, edgellm.1 and edgellm-COMMAND.1, into this folder")
      .value("DIR");
  command.runs([&program, flags] { return help(program, *flags); });
}

}  // namespace edgellm
