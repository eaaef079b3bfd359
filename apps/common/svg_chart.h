// Charts as inline SVG, for self-contained pages. Their colours, light and dark, are in the style
// sheet of apps/common/html_page.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace edgellm {

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
  bool markers = true;   // a dot on every point, which names its values
  bool x_whole = false;  // x counts something: no ticks between whole numbers
  bool y_whole = false;
};

// All series in one frame, from y = 0 on. Where there are several, a legend stands above.
std::string line_chart(const std::vector<Series>& series, const Axes& axes);

// How many values fall into each of at most 40 bins of equal width. Values beyond twice the 99th
// percentile count in the last bin, and a note says how many they are.
std::string histogram(const std::vector<double>& values, const Axes& axes);

struct ChartSample {
  std::string name;
  std::vector<double> values;
};

// A curve for each sample: the share of its values (y, 0 to 100 %) that are at most x. The chart
// ends at twice the largest 99th percentile. A curve that leaves it below 100 % has values beyond.
std::string distribution_chart(const std::vector<ChartSample>& samples, const std::string& x_label);

struct Bar {
  std::string name;
  double value = 0;
  std::string label;  // beside the bar
};

// The best that bars can reach.
struct Limit {
  double value = 0;
  std::string label;
};

// Horizontal bars from zero, and a line for the limit.
std::string bar_chart(const std::vector<Bar>& bars, const std::optional<Limit>& limit);

// Round numbers from at most `low` to at least `high`, about `n` of them; `whole`: all of them
// whole numbers.
std::vector<double> nice_ticks(double low, double high, int n, bool whole = false);

// A tick with as many decimals as every multiple of the step needs: "2.5" and "5.0", not "2" and
// "5".
std::string tick_label(double value, double step);

}  // namespace edgellm
