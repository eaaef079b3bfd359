// Durations as people write them.
#pragma once

#include <optional>
#include <string_view>

namespace edgellm {

// Milliseconds of "90s", "5m", "1h30m", "2d", "300ms", or of a number of seconds. Empty where the
// text is none of these, or has a sign.
std::optional<double> parse_duration_ms(std::string_view text);

}  // namespace edgellm
