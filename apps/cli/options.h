// What a command takes.
//
// A reference handed to a declaration must live until the command has run.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/option_spec.h"

namespace edgellm {

// What is wrong with a value; empty for a good one.
using Problem = std::function<std::string(const std::string& value)>;

// One declared option, for saying more about it. A handle: copies mean the same option.
class Option {
 public:
  explicit Option(OptionSpec* spec) : spec_(spec) {}

  // What a value may be, in the words of option_tree.h. A flag has none.
  Option value(const std::string& text) const;
  Option group(const std::string& title) const;
  Option description(const std::string& text) const;
  // More names, "-t,--thread-count": what users of other programs type. No help shows them. With
  // one, a positional can also be given as an option.
  Option aliases(const std::string& names) const;
  Option required() const;
  Option range(int low, int high) const;
  Option check(Problem problem) const;
  Option needs(const Option& other) const;
  Option excludes(const Option& other) const;

 private:
  OptionSpec* spec_;
};

class Command {
 public:
  // Declares -h, --help. `examples` are indented command lines, perhaps a sentence below them.
  Command(std::string name, std::string description, std::string examples);
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Names are "-n,--max-tokens"; a name without a dash is a positional argument.
  Option flag(const std::string& names, bool& value, const std::string& description);

  // A value that is not given leaves the variable alone. An optional holds an empty text that was
  // given.
  Option option(const std::string& names, std::string& value, const std::string& description);
  Option option(const std::string& names, std::optional<std::string>& value,
                const std::string& description);
  Option option(const std::string& names, int& value, const std::string& description);
  Option option(const std::string& names, std::optional<int>& value,
                const std::string& description);
  Option option(const std::string& names, uint64_t& value, const std::string& description);
  Option option(const std::string& names, double& value, const std::string& description);

  // A value that the caller parses. `parse` may throw Error (kUsage).
  Option parsed_option(const std::string& names,
                       std::function<void(const std::string& value)> parse,
                       const std::string& description);

  // Bytes, with or without a unit: 8G, 512MiB. Above 0.
  Option size_option(const std::string& names, uint64_t& bytes, const std::string& description);

  // A positional argument, the last one: the words that are left, with a space between them.
  Option text(const std::string& name, std::optional<std::string>& value,
              const std::string& description);

  // All words up to the next option.
  Option words(const std::string& names, std::vector<std::string>& values,
               const std::string& description);

  // One value each time the option is given.
  Option repeated_option(const std::string& names, std::vector<std::string>& values,
                         const std::string& description);

  // Values with commas between them, or one each time. A list that is given replaces what `values`
  // held.
  Option word_list(const std::string& names, std::vector<std::string>& values,
                   const std::string& description, Problem problem);
  Option number_list(const std::string& names, std::vector<int>& values,
                     const std::string& description, int low, int high);

  // An option that was declared before.
  Option find(const std::string& name);

  // What to type where more words are given than the command takes: the end of an error.
  void on_extra_words(std::string advice) { extra_words_advice_ = std::move(advice); }
  const std::string& extra_words_advice() const { return extra_words_advice_; }

  // What the command does; the result is the exit code.
  void runs(std::function<int()> run) { run_ = std::move(run); }
  int run() const { return run_(); }

  const std::string& name() const { return name_; }
  const std::string& description() const { return description_; }
  const std::string& examples() const { return examples_; }
  const std::deque<OptionSpec>& specs() const { return specs_; }  // in the order of declaration

 private:
  template <class T, class Target>
  Option number_option(const std::string& names, Target& value, const std::string& description);

  Option add(const std::string& names, OptionSpec::Takes takes, const std::string& description,
             std::function<void(const std::vector<std::string>& values)> take);

  std::string name_;
  std::string description_;
  std::string examples_;
  std::string extra_words_advice_;
  std::deque<OptionSpec> specs_;  // a deque: handles point into it
  std::function<int()> run_;
};

// The words that a value may be, as a check: the problem names the nearest one and lists them all.
Problem one_of(const std::vector<std::string>& words);

}  // namespace edgellm
