// Numbers as people read them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace edgellm {

inline std::string fixed(double value, int decimals) {
  std::array<char, 400> text;  // the longest double has 309 digits before the point
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

// In the largest unit that keeps the number above 1, with one decimal.
inline std::string scaled(uint64_t value, const std::array<const char*, 5>& units) {
  auto number = static_cast<double>(value);
  size_t unit = 0;
  // 999.95 would be printed as 1000.0.
  while (number >= 999.95 && unit + 1 < units.size()) {
    number /= 1000;
    ++unit;
  }
  return fixed(number, unit == 0 ? 0 : 1) + units[unit];
}

// "7.1 MB": decimal units, as disks are sold and memory bandwidths are stated.
inline std::string human_bytes(uint64_t bytes) {
  return scaled(bytes, {" bytes", " kB", " MB", " GB", " TB"});
}

// "17.3 M", "2.4 B".
inline std::string human_count(uint64_t count) {
  return scaled(count, {"", " k", " M", " B", " T"});
}

// "1 token", "2 tokens".
inline std::string counted(int64_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

// "12.3 ms".
inline std::string human_ms(int64_t ns) { return fixed(static_cast<double>(ns) / 1e6, 1) + " ms"; }

}  // namespace edgellm
