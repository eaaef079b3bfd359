// Summaries against values that Python's statistics module and numpy give for the same numbers.
#include "apps/common/statistics.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <span>
#include <vector>

#include "apps/common/latency_histogram.h"
#include "apps/common/measured.h"

namespace edgellm::bench {
namespace {

TEST_CASE("a summary is that of the sample") {
  // statistics.mean, stdev, median of [3.5, 1.25, 8, 2, 5.5]
  const std::vector<double> values = {3.5, 1.25, 8, 2, 5.5};
  const Summary odd = summarise(values);
  CHECK(odd.n == 5);
  CHECK(odd.mean == Approx(4.05));
  CHECK(odd.stddev == Approx(2.740894014733149));
  CHECK(odd.median == 3.5);
  CHECK(odd.min == 1.25);
  CHECK(odd.max == 8);
  CHECK(summarise(std::span(values).first(4)).median == 2.75);
}

TEST_CASE("a summary of one value or none is no accident") {
  const std::vector<double> one = {7};
  CHECK(summarise(one).stddev == 0);
  CHECK(summarise(one).median == 7);
  CHECK(summarise({}).n == 0);
  CHECK(summarise_latencies({}).n == 0);
  CHECK(summarise_latencies({}).max_ns == 0);
}

TEST_CASE("latency percentiles are values that occurred") {
  std::vector<int64_t> latencies;
  for (int64_t i = 100; i >= 1; --i) latencies.push_back(10 * i);
  latencies.push_back(5000);
  const LatencySummary summary = summarise_latencies(latencies);
  CHECK(summary.n == 101);
  CHECK(summary.min_ns == 10);
  CHECK(summary.p50_ns == 510);
  CHECK(summary.p90_ns == 910);
  CHECK(summary.p95_ns == 960);
  CHECK(summary.p99_ns == 1000);
  CHECK(summary.max_ns == 5000);
  CHECK(summary.jitter_ns() == 490);
  CHECK(summary.longest_stall_ns() == 4490);
  CHECK(summary.mean_ns == Approx(549.5049504950495));    // statistics.mean
  CHECK(summary.stddev_ns == Approx(532.3295525097658));  // statistics.stdev
  CHECK(summary.variance_ns2 == Approx(283374.75247524754));
}

TEST_CASE("a line is fitted through points that lie beside it") {
  // numpy.polyfit([0, 1, 4, 8], [2, 2.5, 3, 5.5], 1)
  const std::vector<double> x = {0, 1, 4, 8};
  const std::vector<double> y = {2, 2.5, 3, 5.5};
  const auto line = fit_line(x, y);
  REQUIRE(line);
  CHECK(line->slope == Approx(0.41935483870967744));
  CHECK(line->intercept == Approx(1.8870967741935483));
  const std::vector<double> same = {4, 4};
  CHECK(!fit_line(same, same));
  CHECK(!fit_line({}, {}));
}

TEST_CASE("a missing measurement is null and says why") {
  nlohmann::ordered_json json;
  put(json, "power_w", Measured<double>(7.5));
  put(json, "energy_j", Measured<double>(NotAvailable{"no counter"}));
  put(json, "clock_mhz", Measured<int>());
  CHECK(json.dump() == R"({"power_w":7.5,"energy_j":null,"not_available":{"energy_j":"no counter",)"
                       R"("clock_mhz":"not measured"},"clock_mhz":null})");
  const Measured<double> missing = NotAvailable{"no counter"};
  CHECK(missing.map([](double w) { return 2 * w; }).reason() == "no counter");
  CHECK(*Measured<double>(3).map([](double w) { return 2 * w; }) == 6);
  CHECK_THROWS(Measured<double>(NotAvailable{""}));
}

TEST_CASE("the histogram's percentiles are those of the values, within one part in 64") {
  CHECK(LatencyHistogram().percentile(50) == 0);
  std::vector<int64_t> values;
  LatencyHistogram histogram;
  int64_t value = 1;
  for (int i = 0; i < 2000; ++i) {
    value = value * 48271 % 2147483647;
    values.push_back(i % 3 == 0 ? value % 100 : i == 1 ? int64_t{1} << 62 : value);
    histogram.add(values.back());
  }
  CHECK(histogram.count() == 2000);
  std::sort(values.begin(), values.end());
  for (const int percent : {1, 10, 33, 34, 50, 90, 99, 100}) {
    const int64_t exact =
        nearest_rank<int64_t>(std::span<const int64_t>(values), static_cast<size_t>(percent));
    INFO(percent);
    CHECK(histogram.percentile(percent) >= exact);
    CHECK(histogram.percentile(percent) - exact <= exact / 64);
  }
}

}  // namespace
}  // namespace edgellm::bench
