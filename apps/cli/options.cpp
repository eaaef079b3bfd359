#include "apps/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <utility>

#include "apps/common/near_matches.h"
#include "base/text.h"

namespace edgellm {
namespace {

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

std::optional<int> number_of(const std::string& word) {
  int value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::string last_name(const std::string& names) { return names.substr(names.rfind(',') + 1); }

}  // namespace

// An empty description keeps CLI11 from writing its own into error messages.

Option Option::value(const std::string& text) const {
  option_->option_text(text);
  return *this;
}

Option Option::group(const std::string& title) const {
  option_->group(title);
  return *this;
}

Option Option::description(const std::string& text) const {
  option_->description(text);
  return *this;
}

Option Option::required() const {
  option_->required();
  return *this;
}

Option Option::range(int low, int high) const {
  option_->check(CLI::Range(low, high).description(""));
  return *this;
}

Option Option::check(Problem problem) const {
  option_->check(CLI::Validator(std::move(problem), ""));
  return *this;
}

Option Option::needs(const Option& other) const {
  option_->needs(other.option_);
  return *this;
}

Option Option::excludes(const Option& other) const {
  option_->excludes(other.option_);
  return *this;
}

Option Command::flag(const std::string& names, bool& value, const std::string& description) {
  return Option(app_->add_flag(names, value, description));
}

Option Command::option(const std::string& names, std::string& value,
                       const std::string& description) {
  return Option(app_->add_option(names, value, description));
}

// Not bound to the optional itself: CLI11 would turn an empty text into "not given".
Option Command::option(const std::string& names, std::optional<std::string>& value,
                       const std::string& description) {
  return parsed_option(
      names, [&value](const std::string& text) { value = text; }, description);
}

Option Command::option(const std::string& names, int& value, const std::string& description) {
  return Option(app_->add_option(names, value, description));
}

Option Command::option(const std::string& names, std::optional<int>& value,
                       const std::string& description) {
  return Option(app_->add_option_function<int>(
      names, [&value](int number) { value = number; }, description));
}

Option Command::option(const std::string& names, uint64_t& value, const std::string& description) {
  return Option(app_->add_option(names, value, description));
}

Option Command::option(const std::string& names, double& value, const std::string& description) {
  return Option(app_->add_option(names, value, description));
}

Option Command::parsed_option(const std::string& names,
                              std::function<void(const std::string& value)> parse,
                              const std::string& description) {
  return Option(app_->add_option_function<std::string>(names, std::move(parse), description));
}

Option Command::size_option(const std::string& names, uint64_t& bytes,
                            const std::string& description) {
  return Option(app_->add_option(names, bytes, description)
                    ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true).description(""))
                    ->check(CLI::PositiveNumber.description("")));
}

Option Command::words(const std::string& names, std::vector<std::string>& values,
                      const std::string& description) {
  return Option(app_->add_option(names, values, description));
}

Option Command::repeated_option(const std::string& names, std::vector<std::string>& values,
                                const std::string& description) {
  return Option(app_->add_option(names, values, description)->allow_extra_args(false));
}

Option Command::word_list(const std::string& names, std::vector<std::string>& values,
                          const std::string& description, Problem problem) {
  const auto set = [&values, name = last_name(names),
                    problem = std::move(problem)](const std::vector<std::string>& texts) {
    const std::vector<std::string> words = words_of(texts);
    for (const std::string& word : words) {
      const std::string what = problem(word);
      if (!what.empty()) throw CLI::ValidationError(name, what);
    }
    values = words;
  };
  return Option(app_->add_option_function<std::vector<std::string>>(names, set, description)
                    ->allow_extra_args(false));
}

Option Command::number_list(const std::string& names, std::vector<int>& values,
                            const std::string& description, int low, int high) {
  const auto set = [&values, name = last_name(names), low,
                    high](const std::vector<std::string>& texts) {
    std::vector<int> numbers;
    for (const std::string& word : words_of(texts)) {
      const std::optional<int> number = number_of(word);
      if (!number || *number < low || *number > high) {
        throw CLI::ValidationError(name, "'" + word + "' is not a whole number from " +
                                             std::to_string(low) + " to " + std::to_string(high));
      }
      numbers.push_back(*number);
    }
    values = std::move(numbers);
  };
  return Option(app_->add_option_function<std::vector<std::string>>(names, set, description)
                    ->allow_extra_args(false));
}

Option Command::find(const std::string& name) { return Option(app_->get_option(name)); }

Problem one_of(const std::vector<std::string>& words) {
  return [words](const std::string& value) {
    if (std::find(words.begin(), words.end(), value) != words.end()) return std::string();
    return "'" + value + "' is not one of " + join(words, ", ") + did_you_mean(value, words);
  };
}

}  // namespace edgellm
