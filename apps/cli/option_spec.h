// An option as it was declared. Command (options.h) fills these; program.cpp makes the tree of help
// from them and command_line.cpp reads words by them.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace edgellm {

struct OptionSpec {
  enum class Takes {
    kNothing,  // a flag
    kOne,      // one value; of several the last counts
    kEach,     // one value each time, all of which count
    kMany,     // all words up to the next option
    kJoined,   // a positional: all words that are left, as one text
  };

  std::vector<std::string> names;    // "-n", "--max-tokens"; of a positional: "PROMPT"
  std::vector<std::string> aliases;  // taken, and in no help; a positional may have some as well
  Takes takes = Takes::kOne;
  std::string value;  // option_tree.h; empty: not said
  std::string group = "Options";
  std::string description;
  bool required = false;
  // What is wrong with one value; empty for a good one.
  std::vector<std::function<std::string(const std::string& value)>> checks;
  std::vector<const OptionSpec*> needs;
  std::vector<const OptionSpec*> excludes;
  // Gets what was given: nothing for a flag, else at least one value. May throw Error (kUsage).
  std::function<void(const std::vector<std::string>& values)> take;

  bool is_positional() const { return !names.front().starts_with('-'); }
  const std::string& name() const { return names.back(); }  // "--max-tokens", as errors call it
};

}  // namespace edgellm
