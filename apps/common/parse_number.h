// A number as a user types it: the whole text, without spaces, and in range.
#pragma once

#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

#include "base/error.h"

namespace edgellm {

// Empty where the text is no number of that type.
template <class T>
std::optional<T> try_parse_number(const std::string& text) {
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

// `name` is what the user calls the value. Throws Error (kUsage).
template <class T>
T parse_number(const std::string& name, const std::string& text) {
  if (const std::optional<T> value = try_parse_number<T>(text)) return *value;
  std::string expected = "a number";
  if constexpr (std::is_integral_v<T>) {
    T ignored = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), ignored);
    expected = "a whole number";
    if (std::is_unsigned_v<T> || error == std::errc::result_out_of_range) {
      expected += " from " + std::to_string(std::numeric_limits<T>::min()) + " to " +
                  std::to_string(std::numeric_limits<T>::max());
    }
  }
  throw Error(ExitCode::kUsage, name + ": '" + text + "' is not " + expected);
}

}  // namespace edgellm
