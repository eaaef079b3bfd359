#include "apps/common/timings.h"

#include <algorithm>
#include <vector>

#include "apps/common/statistics.h"

namespace edgellm {
namespace {

// value / unit with as many decimals as it needs: 1500 of 1000 is "1.5".
std::string decimal(uint64_t value, uint64_t unit) {
  std::string text = std::to_string(value / unit);
  if (const uint64_t rest = value % unit; rest != 0) {
    std::string digits = std::to_string(unit + rest).substr(1);  // with leading zeros
    digits.erase(digits.find_last_not_of('0') + 1);
    text += "." + digits;
  }
  return text;
}

}  // namespace

Percentiles percentiles(std::span<const int64_t> values) {
  if (values.empty()) return {};
  std::vector<int64_t> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const auto rank = [&](size_t percent) {
    return nearest_rank(std::span<const int64_t>(sorted), percent);
  };
  return {.p50 = rank(50), .p90 = rank(90), .p99 = rank(99), .max = sorted.back()};
}

std::string go_duration(int64_t ns) {
  if (ns < 0) return "-" + go_duration(-ns);
  const auto value = static_cast<uint64_t>(ns);
  constexpr uint64_t kMicrosecond = 1'000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;
  if (value == 0) return "0s";
  if (value < kMicrosecond) return std::to_string(value) + "ns";
  if (value < kMillisecond) return decimal(value, kMicrosecond) + "\u00b5s";
  if (value < kSecond) return decimal(value, kMillisecond) + "ms";
  const uint64_t minutes = value / (60 * kSecond);
  std::string text = decimal(value % (60 * kSecond), kSecond) + "s";
  if (minutes > 0) text.insert(0, std::to_string(minutes % 60) + "m");
  if (minutes >= 60) text.insert(0, std::to_string(minutes / 60) + "h");
  return text;
}

double per_second(int64_t count, int64_t ns) {
  return ns > 0 ? static_cast<double>(count) * 1e9 / static_cast<double>(ns) : 0.0;
}

}  // namespace edgellm
