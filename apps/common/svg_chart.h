// Charts as inline SVG, for pages that need nothing from anywhere (apps/common/html_page.h has the
// style sheet that gives them their colours, light and dark).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace edgellm::bench {

// Text as HTML and SVG want it, quotes included; control characters become U+FFFD.
std::string escape_html(const std::string& text);

struct Point {
  double x = 0;
  double y = 0;
};

struct Series {
  std::string name;
  std::vector<Point> points;  // in the order in which they are joined
};

struct Axes {
  std::string x_label;
  std::string y_label;
  bool y_from_zero = true;
  bool markers = true;  // a dot on every point, which names its values
};

// All series in one frame. Where there is more than one, a legend stands above.
std::string line_chart(const std::vector<Series>& series, const Axes& axes);

// How many of the values fall into each of at most 40 bins of equal width. Values beyond twice
// the 99th percentile count in the last bin, which then says so.
std::string histogram(const std::vector<double>& values, const Axes& axes);

// The share of values (y, 0 to 100 %) that are at most x, one curve a series of values. It ends at
// twice the largest 99th percentile: a curve that leaves the chart below 100 % has values beyond.
struct Sample {
  std::string name;
  std::vector<double> values;
};
std::string distribution_chart(const std::vector<Sample>& samples, const std::string& x_label);

struct Bar {
  std::string name;
  double value = 0;
  std::string label;  // beside the bar
};

// Horizontal bars from zero, and a line for what they can reach at best.
struct Limit {
  double value = 0;
  std::string label;
};
std::string bar_chart(const std::vector<Bar>& bars, const std::optional<Limit>& limit);

// Round numbers from at most `low` to at least `high`, about `n` of them.
std::vector<double> nice_ticks(double low, double high, int n);

}  // namespace edgellm::bench
