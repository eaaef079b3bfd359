// A number as a user types it: the whole text, without spaces, and in range.
#pragma once

#include <charconv>
#include <string>
#include <type_traits>

#include "base/error.h"

namespace edgellm {

// `name` is what the user calls the value. Throws Error (kUsage).
template <class T>
T parse_number(const std::string& name, const std::string& text) {
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && rest == end) return value;
  throw Error(ExitCode::kUsage,
              name + ": '" + text + "' is not " +
                  (std::is_floating_point_v<T> ? "a number"
                   : std::is_signed_v<T>       ? "an integer"
                                               : "an integer from 0 to 18446744073709551615") +
                  "; see edgellm run --help");
}

}  // namespace edgellm
