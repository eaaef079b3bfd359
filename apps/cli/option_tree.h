// CLI11's tree of commands and options as help texts, man pages and completions read it. They are
// made from this alone, so a new option is in all of them.
//
// What stands in an option's option_text() (for a positional: there, or else its name) says what
// the value may be, and completion goes by it. It is a word or several, separated by "|":
//
//   f16|f32        these words: whatever begins with a small letter or a digit
//   FILE, OUT      a file; FILE.json: a file whose name ends in .json
//   SRC            a file or a folder
//   DIR            a folder
//   MODEL          a .tmac2 file, or the name of a model in one of the model folders
//   N, TEXT, ...   anything else: nothing to complete
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace edgellm {

struct OptionInfo {
  std::vector<std::string> names;  // "-n", "--max-tokens"; of a positional: "PROMPT"
  std::string value;               // as above; empty for a flag
  std::string description;
  bool required = false;
  bool repeatable = false;
};

struct OptionGroup {
  std::string title;  // "Options", "Sampling", ...
  std::vector<OptionInfo> options;
};

struct CommandInfo {
  std::string name;  // "run"; "edgellm" for the program itself
  std::string description;
  std::string examples;                 // indented command lines, perhaps a sentence below them
  std::vector<OptionInfo> positionals;  // in their order
  std::vector<OptionGroup> groups;      // "Options" first, then in the order of their first option
  std::vector<CommandInfo> commands;    // without hidden ones (those of the group "")

  std::string full_name() const;  // "edgellm run"
};

CommandInfo command_info(const CLI::App& app);

// What a value may be, read from OptionInfo::value.
struct ValueChoices {
  std::vector<std::string> words;
  std::vector<std::string> endings;  // of files, with the dot; empty: any file, if `files`
  bool files = false;
  bool folders = false;
  bool models = false;
};
ValueChoices value_choices(const std::string& value);

// A validator for the words of such a value. The error names the nearest one and lists them all.
CLI::Validator one_of(const std::vector<std::string>& words);

}  // namespace edgellm
