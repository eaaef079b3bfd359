#include "apps/serve/keep_alive.h"

#include <string_view>

#include "apps/common/duration.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm::serve {
namespace {

// Longer is for ever.
constexpr double kMostMs = 1e13;

KeepAlive of_ms(double ms) {
  if (ms < 0 || ms > kMostMs) return std::nullopt;
  return std::chrono::milliseconds(static_cast<int64_t>(ms));
}

}  // namespace

KeepAlive parse_keep_alive(const std::string& name, const std::string& text) {
  const bool is_negative = text.starts_with('-');
  const std::optional<double> ms =
      parse_duration_ms(std::string_view(text).substr(is_negative ? 1 : 0));
  if (!ms) {
    throw Error(ExitCode::kUsage, name + " is \"" + printable(text, 40) +
                                      "\", expected a duration, for example 90s, 5m or 1h30m; "
                                      "-1: as long as there is memory");
  }
  return is_negative ? std::nullopt : of_ms(*ms);
}

KeepAlive read_keep_alive(const Fields& body, const KeepAlive& otherwise) {
  const Json* value = body.find("keep_alive");
  if (value == nullptr) return otherwise;
  if (value->is_number()) return of_ms(body.number("keep_alive") * 1e3);
  return parse_keep_alive(body.name("keep_alive"), body.text("keep_alive"));
}

}  // namespace edgellm::serve
