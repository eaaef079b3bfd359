// Summaries of measurements. Nothing is smoothed, trimmed or estimated. Every percentile is a value
// that occurred.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace edgellm {

// Nearest rank: the smallest value such that at least `percent` per cent (1 to 100) of all values
// do not exceed it. `sorted` is ascending and not empty.
template <class T>
T nearest_rank(std::span<const T> sorted, size_t percent) {
  return sorted[(sorted.size() * percent + 99) / 100 - 1];
}

// All 0 for an empty set.
struct Summary {
  size_t n = 0;
  double mean = 0;
  double stddev = 0;  // of the sample (n - 1); 0 for a single value
  double median = 0;  // of an even number of values the mean of the middle two
  double min = 0;
  double max = 0;
};
Summary summarise(std::span<const double> values);

// Inter-token latencies, or times to a first token. All 0 for an empty set.
struct LatencySummary {
  size_t n = 0;
  double mean_ns = 0;
  double stddev_ns = 0;
  double variance_ns2 = 0;
  int64_t min_ns = 0;
  int64_t p50_ns = 0, p90_ns = 0, p95_ns = 0, p99_ns = 0;
  int64_t max_ns = 0;

  int64_t jitter_ns() const { return p99_ns - p50_ns; }
  // By how much the longest latency exceeds the usual one.
  int64_t longest_stall_ns() const { return max_ns - p50_ns; }
};
LatencySummary summarise_latencies(std::span<const int64_t> latencies_ns);

// Least squares: y = intercept + slope * x. Empty where all x are the same.
struct FittedLine {
  double slope = 0;
  double intercept = 0;
};
std::optional<FittedLine> fit_line(std::span<const double> x, std::span<const double> y);

}  // namespace edgellm
