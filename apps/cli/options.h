// What a command takes, declared without the parser: only apps/cli compiles CLI11.
//
// A reference handed to a declaration must live until the command has run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace edgellm {

// What is wrong with a value; empty for a good one.
using Problem = std::function<std::string(const std::string& value)>;

// One declared option, for saying more about it. A handle: copies mean the same option.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  // What a value may be, in the words of option_tree.h. A flag has none.
  Option value(const std::string& text) const;
  Option group(const std::string& title) const;
  Option description(const std::string& text) const;
  Option required() const;
  Option range(int low, int high) const;
  Option check(Problem problem) const;
  Option needs(const Option& other) const;
  Option excludes(const Option& other) const;

 private:
  CLI::Option* option_;
};

class Command {
 public:
  // `app` must outlive the object.
  explicit Command(CLI::App& app) : app_(&app) {}

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

  // What the command does; the result is the exit code.
  void runs(std::function<int()> run) { run_ = std::move(run); }
  int run() const { return run_(); }

 private:
  friend class Program;

  CLI::App* app_;
  std::function<int()> run_;
};

// The words that a value may be, as a check: the problem names the nearest one and lists them all.
Problem one_of(const std::vector<std::string>& words);

}  // namespace edgellm
