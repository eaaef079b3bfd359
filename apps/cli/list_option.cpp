#include "apps/cli/list_option.h"

#include <charconv>
#include <optional>
#include <utility>

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

}  // namespace

CLI::Option* add_word_list(CLI::App& app, const std::string& names,
                           std::vector<std::string>& values, const std::string& description,
                           std::function<std::string(const std::string& word)> problem) {
  const std::string last_name = names.substr(names.rfind(',') + 1);
  return app
      .add_option_function<std::vector<std::string>>(
          names,
          [&values, last_name,
           problem = std::move(problem)](const std::vector<std::string>& texts) {
            const std::vector<std::string> words = words_of(texts);
            for (const std::string& word : words) {
              const std::string what = problem(word);
              if (!what.empty()) throw CLI::ValidationError(last_name, what);
            }
            values = words;
          },
          description)
      ->allow_extra_args(false);
}

CLI::Option* add_number_list(CLI::App& app, const std::string& names, std::vector<int>& values,
                             const std::string& description, int low, int high) {
  const std::string last_name = names.substr(names.rfind(',') + 1);
  return app
      .add_option_function<std::vector<std::string>>(
          names,
          [&values, last_name, low, high](const std::vector<std::string>& texts) {
            std::vector<int> numbers;
            for (const std::string& word : words_of(texts)) {
              const std::optional<int> number = number_of(word);
              if (!number || *number < low || *number > high) {
                throw CLI::ValidationError(last_name, "'" + word + "' is not a whole number from " +
                                                          std::to_string(low) + " to " +
                                                          std::to_string(high));
              }
              numbers.push_back(*number);
            }
            values = std::move(numbers);
          },
          description)
      ->allow_extra_args(false);
}

}  // namespace edgellm
