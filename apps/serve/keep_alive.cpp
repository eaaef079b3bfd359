#include "apps/serve/keep_alive.h"

#include <array>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace edgellm::serve {
namespace {

struct Unit {
  std::string_view name;
  double ms;
};
// The longer of two that begin alike comes first.
constexpr std::array<Unit, 7> kUnits = {{{"ms", 1},
                                         {"us", 1e-3},
                                         {"\u00b5s", 1e-3},
                                         {"ns", 1e-6},
                                         {"s", 1e3},
                                         {"m", 60e3},
                                         {"h", 3600e3}}};

// Longer is for ever.
constexpr double kMostMs = 1e13;

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

// A number alone is seconds.
bool is_plain_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789.") == std::string_view::npos;
}

KeepAlive of_ms(double ms) {
  if (ms < 0 || ms > kMostMs) return std::nullopt;
  return std::chrono::milliseconds(static_cast<int64_t>(ms));
}

}  // namespace

KeepAlive parse_keep_alive(const std::string& name, const std::string& text) {
  const bool is_negative = text.starts_with('-');
  std::string whole = text.substr(is_negative ? 1 : 0);
  if (is_plain_number(whole)) whole += "s";
  std::string_view rest = whole;
  double ms = 0;
  bool is_good = !rest.empty();
  while (is_good && !rest.empty()) {
    const std::optional<double> part = take_part(rest);
    is_good = part.has_value();
    ms += part.value_or(0);
  }
  if (!is_good) {
    throw Error(ExitCode::kUsage, name + " is \"" + printable(text, 40) +
                                      "\", expected a duration, for example 90s, 5m or 1h30m; "
                                      "-1: as long as there is memory");
  }
  return is_negative ? std::nullopt : of_ms(ms);
}

KeepAlive read_keep_alive(const Fields& body, const KeepAlive& otherwise) {
  const Json* value = body.find("keep_alive");
  if (value == nullptr) return otherwise;
  if (value->is_number()) return of_ms(body.number("keep_alive") * 1e3);
  return parse_keep_alive(body.name("keep_alive"), body.text("keep_alive"));
}

}  // namespace edgellm::serve
