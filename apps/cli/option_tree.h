// The tree of commands and options (Program::info) as help texts, man pages and completions read
// it. They are made from this alone, so a new option is in all of them.
//
// Option::value() says what a value may be, and completion goes by it; of a positional argument
// without one its name does. It is one word or several, separated by "|":
//
//   i16|i8|f32     these words: all that begin with a small letter or a digit
//   FILE, OUT      a file; FILE.json: a file whose name ends in .json
//   SRC            a file or a folder
//   DIR            a folder
//   MODEL          a .tmac2 file, or the name of a model in one of the model folders
//   N, T, ...      one letter: a number
//   TEXT, ...      anything else: nothing to complete
#pragma once

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
  std::vector<CommandInfo> commands;

  std::string full_name() const;  // "edgellm run"
};

// What a value may be, read from OptionInfo::value.
struct ValueChoices {
  std::vector<std::string> words;
  std::vector<std::string> endings;  // of files, with the dot; empty: any file, if `files`
  bool files = false;
  bool folders = false;
  bool models = false;
};
ValueChoices value_choices(const std::string& value);

}  // namespace edgellm
