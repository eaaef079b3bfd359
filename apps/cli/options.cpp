#include "apps/cli/options.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <utility>

#include "apps/common/near_matches.h"
#include "apps/common/parse_number.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm {
namespace {

using Takes = OptionSpec::Takes;

// The words of all texts; an empty one too, for the caller to refuse.
std::vector<std::string> words_of(const std::vector<std::string>& texts) {
  std::vector<std::string> words;
  for (const std::string& text : texts) {
    size_t begin = 0;
    for (size_t comma; (comma = text.find(',', begin)) != std::string::npos; begin = comma + 1) {
      words.push_back(text.substr(begin, comma - begin));
    }
    words.push_back(text.substr(begin));
  }
  return words;
}

// "-n,--max-tokens" as two names.
std::vector<std::string> names_of(const std::string& names) { return words_of({names}); }

std::string range_problem(const std::string& value, int low, int high) {
  const std::optional<int> number = try_parse_number<int>(value);
  if (number && *number >= low && *number <= high) return "";
  return "'" + value + "' is not a whole number from " + std::to_string(low) + " to " +
         std::to_string(high);
}

// What is wrong with the first bad word of a list.
Problem of_each_word(Problem problem) {
  return [problem = std::move(problem)](const std::string& text) {
    for (const std::string& word : words_of({text})) {
      std::string what = problem(word);
      if (!what.empty()) return what;
    }
    return std::string();
  };
}

// Bytes of "8G", "512MiB", "100000"; empty where that is no size above 0 that fits.
std::optional<uint64_t> parse_size(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::optional<uint64_t> number = try_parse_number<uint64_t>(text.substr(0, digits));
  std::string unit = text.substr(digits);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (unit.ends_with('b')) unit.pop_back();
  uint64_t step = 1000;
  if (unit.size() == 2 && unit.ends_with('i')) {
    step = 1024;
    unit.pop_back();
  }
  const size_t power = unit.empty() ? 0 : std::string("kmgtp").find(unit) + 1;
  if (!number || *number == 0 || unit.size() > 1 || (!unit.empty() && power == 0)) {
    return std::nullopt;
  }
  uint64_t bytes = *number;
  for (size_t i = 0; i < power; ++i) {
    if (bytes > std::numeric_limits<uint64_t>::max() / step) return std::nullopt;
    bytes *= step;
  }
  return bytes;
}

}  // namespace

Option Option::value(const std::string& text) const {
  spec_->value = text;
  return *this;
}

Option Option::group(const std::string& title) const {
  spec_->group = title;
  return *this;
}

Option Option::description(const std::string& text) const {
  spec_->description = text;
  return *this;
}

Option Option::aliases(const std::string& names) const {
  for (std::string& name : names_of(names)) spec_->aliases.push_back(std::move(name));
  return *this;
}

Option Option::required() const {
  spec_->required = true;
  return *this;
}

Option Option::range(int low, int high) const {
  return check([low, high](const std::string& value) { return range_problem(value, low, high); });
}

Option Option::check(Problem problem) const {
  spec_->checks.push_back(std::move(problem));
  return *this;
}

Option Option::needs(const Option& other) const {
  spec_->needs.push_back(other.spec_);
  return *this;
}

Option Option::excludes(const Option& other) const {
  spec_->excludes.push_back(other.spec_);
  return *this;
}

Command::Command(std::string name, std::string description, std::string examples)
    : name_(std::move(name)), description_(std::move(description)), examples_(std::move(examples)) {
  // command_line.cpp knows it by its place, the first.
  add("-h,--help", Takes::kNothing, "Print this help and exit", [](const auto&) {});
}

Option Command::add(const std::string& names, Takes takes, const std::string& description,
                    std::function<void(const std::vector<std::string>& values)> take) {
  OptionSpec& spec = specs_.emplace_back();
  spec.names = names_of(names);
  spec.takes = takes;
  spec.description = description;
  spec.take = std::move(take);
  return Option(&spec);
}

Option Command::flag(const std::string& names, bool& value, const std::string& description) {
  return add(names, Takes::kNothing, description, [&value](const auto&) { value = true; });
}

Option Command::parsed_option(const std::string& names,
                              std::function<void(const std::string& value)> parse,
                              const std::string& description) {
  return add(
      names, Takes::kOne, description,
      [parse = std::move(parse)](const std::vector<std::string>& values) { parse(values.back()); });
}

Option Command::option(const std::string& names, std::string& value,
                       const std::string& description) {
  return parsed_option(
      names, [&value](const std::string& text) { value = text; }, description);
}

Option Command::option(const std::string& names, std::optional<std::string>& value,
                       const std::string& description) {
  return parsed_option(
      names, [&value](const std::string& text) { value = text; }, description);
}

template <class T, class Target>
Option Command::number_option(const std::string& names, Target& value,
                              const std::string& description) {
  return parsed_option(
      names,
      [&value, name = names_of(names).back()](const std::string& text) {
        value = parse_number<T>(name, text);
      },
      description);
}

Option Command::option(const std::string& names, int& value, const std::string& description) {
  return number_option<int>(names, value, description);
}

Option Command::option(const std::string& names, std::optional<int>& value,
                       const std::string& description) {
  return number_option<int>(names, value, description);
}

Option Command::option(const std::string& names, uint64_t& value, const std::string& description) {
  return number_option<uint64_t>(names, value, description);
}

Option Command::option(const std::string& names, double& value, const std::string& description) {
  return number_option<double>(names, value, description);
}

Option Command::size_option(const std::string& names, uint64_t& bytes,
                            const std::string& description) {
  return parsed_option(
             names, [&bytes](const std::string& text) { bytes = parse_size(text).value(); },
             description)
      .check([](const std::string& text) {
        return parse_size(text) ? "" : "'" + text + "' is not a size; use 8G or 512MiB for example";
      });
}

Option Command::text(const std::string& name, std::optional<std::string>& value,
                     const std::string& description) {
  return add(name, Takes::kJoined, description,
             [&value](const std::vector<std::string>& values) { value = join(values, " "); });
}

Option Command::words(const std::string& names, std::vector<std::string>& values,
                      const std::string& description) {
  return add(names, Takes::kMany, description,
             [&values](const std::vector<std::string>& words) { values = words; });
}

Option Command::repeated_option(const std::string& names, std::vector<std::string>& values,
                                const std::string& description) {
  return add(names, Takes::kEach, description,
             [&values](const std::vector<std::string>& texts) { values = texts; });
}

Option Command::word_list(const std::string& names, std::vector<std::string>& values,
                          const std::string& description, Problem problem) {
  return add(names, Takes::kEach, description,
             [&values](const std::vector<std::string>& texts) { values = words_of(texts); })
      .check(of_each_word(std::move(problem)));
}

Option Command::number_list(const std::string& names, std::vector<int>& values,
                            const std::string& description, int low, int high) {
  return add(names, Takes::kEach, description,
             [&values](const std::vector<std::string>& texts) {
               values.clear();
               for (const std::string& word : words_of(texts)) {
                 values.push_back(try_parse_number<int>(word).value());
               }
             })
      .check(of_each_word(
          [low, high](const std::string& word) { return range_problem(word, low, high); }));
}

Option Command::find(const std::string& name) {
  const auto found = std::find_if(specs_.begin(), specs_.end(), [&](const OptionSpec& spec) {
    return std::find(spec.names.begin(), spec.names.end(), name) != spec.names.end();
  });
  require(found != specs_.end(), "Command::find: no option of that name");
  return Option(&*found);
}

Problem one_of(const std::vector<std::string>& words) {
  return [words](const std::string& value) {
    if (std::find(words.begin(), words.end(), value) != words.end()) return std::string();
    return "'" + value + "' is not one of " + join(words, ", ") + did_you_mean(value, words);
  };
}

}  // namespace edgellm
