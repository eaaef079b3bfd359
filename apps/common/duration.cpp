#include "apps/common/duration.h"

#include <array>
#include <charconv>
#include <string>

namespace edgellm {
namespace {

struct Unit {
  std::string_view name;
  double ms;
};
// The longer of two that begin alike comes first.
constexpr std::array<Unit, 8> kUnits = {{{"ms", 1},
                                         {"us", 1e-3},
                                         {"\u00b5s", 1e-3},
                                         {"ns", 1e-6},
                                         {"s", 1e3},
                                         {"m", 60e3},
                                         {"h", 3600e3},
                                         {"d", 86400e3}}};

// A number and its unit at the beginning of `rest`, which loses them. Empty where there is none.
std::optional<double> take_part(std::string_view& rest) {
  // No sign, no inf, no nan.
  if (rest.empty() || rest.front() < '0' || rest.front() > '9') return std::nullopt;
  double value = 0;
  const auto [end, error] =
      std::from_chars(rest.data(), rest.data() + rest.size(), value, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  for (const Unit& unit : kUnits) {
    if (!rest.starts_with(unit.name)) continue;
    rest.remove_prefix(unit.name.size());
    return value * unit.ms;
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> parse_duration_ms(std::string_view text) {
  std::string whole(text);
  if (whole.find_first_not_of("0123456789.") == std::string::npos) whole += "s";
  std::string_view rest = whole;
  double ms = 0;
  do {
    const std::optional<double> part = take_part(rest);
    if (!part) return std::nullopt;
    ms += *part;
  } while (!rest.empty());
  return ms;
}

}  // namespace edgellm
