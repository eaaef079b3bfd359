#include "apps/common/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace edgellm {

Summary summarise(std::span<const double> values) {
  Summary summary;
  summary.n = values.size();
  if (values.empty()) return summary;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  summary.min = sorted.front();
  summary.max = sorted.back();
  const size_t middle = sorted.size() / 2;
  summary.median =
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  const auto n = static_cast<double>(sorted.size());
  for (const double value : sorted) summary.mean += value / n;
  double squares = 0;
  for (const double value : sorted) squares += (value - summary.mean) * (value - summary.mean);
  if (sorted.size() > 1) summary.stddev = std::sqrt(squares / (n - 1));
  return summary;
}

LatencySummary summarise_latencies(std::span<const int64_t> latencies_ns) {
  LatencySummary summary;
  if (latencies_ns.empty()) return summary;
  const std::vector<double> values(latencies_ns.begin(), latencies_ns.end());
  const Summary all = summarise(values);
  summary.n = all.n;
  summary.mean_ns = all.mean;
  summary.stddev_ns = all.stddev;
  summary.variance_ns2 = all.stddev * all.stddev;
  std::vector<int64_t> sorted(latencies_ns.begin(), latencies_ns.end());
  std::sort(sorted.begin(), sorted.end());
  const std::span<const int64_t> ranks = sorted;
  summary.min_ns = sorted.front();
  summary.p50_ns = nearest_rank(ranks, 50);
  summary.p90_ns = nearest_rank(ranks, 90);
  summary.p95_ns = nearest_rank(ranks, 95);
  summary.p99_ns = nearest_rank(ranks, 99);
  summary.max_ns = sorted.back();
  return summary;
}

std::optional<FittedLine> fit_line(std::span<const double> x, std::span<const double> y) {
  require(x.size() == y.size(), "a line is fitted through pairs");
  if (x.empty()) return std::nullopt;
  const double x_mean = summarise(x).mean;
  const double y_mean = summarise(y).mean;
  double xx = 0;
  double xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - x_mean) * (x[i] - x_mean);
    xy += (x[i] - x_mean) * (y[i] - y_mean);
  }
  if (xx == 0) return std::nullopt;
  const double slope = xy / xx;
  return FittedLine{slope, y_mean - slope * x_mean};
}

}  // namespace edgellm
