// How long things took.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"

namespace edgellm {

class Stopwatch {
 public:
  int64_t elapsed_ns() const { return now_ns() - start_; }

 private:
  int64_t start_ = now_ns();
};

// Of a set of durations; all 0 for an empty one. Nearest-rank: only values that occurred.
struct Percentiles {
  int64_t p50 = 0;
  int64_t p90 = 0;
  int64_t p99 = 0;
  int64_t max = 0;
};
Percentiles percentiles(std::span<const int64_t> values);

// As Go's time.Duration prints itself, and so Ollama: "1.5s", "12.345678ms", "2m0.25s".
std::string go_duration(int64_t ns);

// Events per second; 0 where no time was measured.
double per_second(int64_t count, int64_t ns);

}  // namespace edgellm
