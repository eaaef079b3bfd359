#include "apps/common/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <span>

#include "apps/common/statistics.h"
#include "base/error.h"
#include "base/number_format.h"

namespace edgellm {
namespace {

// In units of the view box; a page scales it to its column.
constexpr double kWidth = 720;
constexpr double kHeight = 300;
constexpr double kLeft = 64;
constexpr double kRight = 24;  // half of the last tick's label
constexpr double kTop = 14;
constexpr double kBottom = 46;
constexpr size_t kColours = 6;  // that the style sheet has
constexpr size_t kMaxBins = 40;

std::string n(double value) { return fixed(value, 1); }

// With four significant digits.
std::string reading(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

std::string open_svg(double height, const std::string& description) {
  return "<svg viewBox=\"0 0 " + n(kWidth) + " " + n(height) + "\" role=\"img\" aria-label=\"" +
         escape_html(description) + "\">";
}

std::string text(double x, double y, const char* anchor, const std::string& content,
                 const char* css_class = "tick") {
  return "<text class=\"" + std::string(css_class) + "\" x=\"" + n(x) + "\" y=\"" + n(y) +
         "\" text-anchor=\"" + anchor + "\">" + escape_html(content) + "</text>";
}

std::string line(double x1, double y1, double x2, double y2, const char* css_class) {
  return "<line class=\"" + std::string(css_class) + "\" x1=\"" + n(x1) + "\" y1=\"" + n(y1) +
         "\" x2=\"" + n(x2) + "\" y2=\"" + n(y2) + "\"/>";
}

// A filled rectangle. `attributes` are further ones, each after a space.
std::string bar(double x, double y, double width, double height, const std::string& attributes,
                const std::string& title) {
  return "<rect class=\"bar b0\" x=\"" + n(x) + "\" y=\"" + n(y) + "\" width=\"" + n(width) +
         "\" height=\"" + n(height) + "\"" + attributes + "><title>" + escape_html(title) +
         "</title></rect>";
}

std::string dot(double x, double y, const std::string& colour, const std::string& title) {
  return "<circle class=\"dot c" + colour + "\" cx=\"" + n(x) + "\" cy=\"" + n(y) +
         "\" r=\"4\"><title>" + escape_html(title) + "</title></circle>";
}

// Places values in the view box and draws the axes.
class Frame {
 public:
  Frame(double x_low, double x_high, double y_low, double y_high, const Axes& axes)
      : x_ticks_(nice_ticks(x_low, x_high, 8, axes.x_whole)),
        y_ticks_(nice_ticks(y_low, y_high, 5, axes.y_whole)) {}

  double x(double value) const {
    return kLeft + (value - x_ticks_.front()) / (x_ticks_.back() - x_ticks_.front()) *
                       (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom -
           (value - y_ticks_.front()) / (y_ticks_.back() - y_ticks_.front()) *
               (kHeight - kTop - kBottom);
  }

  std::string axes(const Axes& axes) const {
    std::string out;
    const double y_step = y_ticks_[1] - y_ticks_[0];
    for (const double tick : y_ticks_) {
      out += line(kLeft, y(tick), kWidth - kRight, y(tick), "grid");
      out += text(kLeft - 8, y(tick) + 4, "end", tick_label(tick, y_step));
    }
    const double x_step = x_ticks_[1] - x_ticks_[0];
    for (const double tick : x_ticks_) {
      out += text(x(tick), kHeight - kBottom + 18, "middle", tick_label(tick, x_step));
    }
    out += line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "axis");
    out += text((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", axes.x_label, "label");
    out += "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(14 " +
           n((kTop + kHeight - kBottom) / 2) + ") rotate(-90)\">" + escape_html(axes.y_label) +
           "</text>";
    return out;
  }

 private:
  std::vector<double> x_ticks_;
  std::vector<double> y_ticks_;
};

std::string colour(size_t series) { return std::to_string(series % kColours); }

std::string legend(const std::vector<std::string>& names) {
  if (names.size() < 2) return "";
  std::string out = "<ul class=\"legend\">";
  for (size_t i = 0; i < names.size(); ++i) {
    out += "<li><i class=\"b" + colour(i) + "\"></i>" + escape_html(names[i]) + "</li>";
  }
  return out + "</ul>";
}

struct Range {
  double low = 0;
  double high = 0;

  void cover(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// Not empty: around a single value its half to both sides.
Range widened(Range range) {
  if (range.high > range.low) return range;
  const double half = range.low == 0 ? 1 : std::abs(range.low) / 2;
  return {range.low - half, range.high + half};
}

// Where a chart of these values ends. One stall of a second must not squeeze all others.
double shown_end(const std::vector<double>& sorted) {
  return std::min(sorted.back(), 2 * nearest_rank(std::span<const double>(sorted), 99));
}

// Both ends of each step up, at every value once.
Series steps_of(const std::string& name, const std::vector<double>& sorted, double end) {
  Series curve{name, {{sorted.front(), 0}}};
  const auto count = static_cast<double>(sorted.size());
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double below = 100 * static_cast<double>(i) / count;
    if (sorted[i] > end) {
      curve.points.push_back({end, below});
      break;
    }
    if (i + 1 < sorted.size() && sorted[i] == sorted[i + 1]) continue;
    curve.points.push_back({sorted[i], below});
    curve.points.push_back({sorted[i], 100 * static_cast<double>(i + 1) / count});
  }
  return curve;
}

}  // namespace

std::string escape_html(const std::string& raw) {
  std::string out;
  for (const char c : raw) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += "\uFFFD";
        } else {
          out += c;
        }
    }
  }
  return out;
}

std::string tick_label(double value, double step) {
  constexpr int kMostDecimals = 9;
  int decimals = 0;
  for (double scaled = step; decimals < kMostDecimals; scaled *= 10, ++decimals) {
    if (std::abs(scaled - std::round(scaled)) < 1e-6 * scaled) break;
  }
  return fixed(value, decimals);
}

std::vector<double> nice_ticks(double low, double high, int n_ticks, bool whole) {
  require(std::isfinite(low) && std::isfinite(high) && low <= high && n_ticks >= 1,
          "ticks need a range of finite numbers");
  const Range range = widened({low, high});
  const double raw = (range.high - range.low) / n_ticks;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  if (whole && step != std::round(step)) step = std::max(1.0, 2 * step);  // 2.5 is the only other
  const double first = std::floor(range.low / step + 1e-9);
  const double last = std::ceil(range.high / step - 1e-9);
  std::vector<double> ticks;
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string line_chart(const std::vector<Series>& series, const Axes& axes) {
  std::vector<std::string> names;
  std::vector<Point> points;  // of all series
  for (const Series& one : series) {
    names.push_back(one.name);
    points.insert(points.end(), one.points.begin(), one.points.end());
  }
  require(!points.empty(), "a chart needs a point");
  Range xs{points.front().x, points.front().x};
  Range ys;
  for (const Point& point : points) {
    xs.cover(point.x);
    ys.cover(point.y);
  }
  const Frame frame(xs.low, xs.high, ys.low, ys.high, axes);

  std::string out = legend(names) + open_svg(kHeight, axes.y_label + " against " + axes.x_label) +
                    frame.axes(axes);
  for (size_t i = 0; i < series.size(); ++i) {
    out += "<polyline class=\"line c" + colour(i) + "\" points=\"";
    for (const Point& point : series[i].points) {
      out += n(frame.x(point.x)) + "," + n(frame.y(point.y)) + " ";
    }
    out += "\"/>";
    if (!axes.markers) continue;
    const std::string prefix = series.size() > 1 ? series[i].name + ": " : "";
    for (const Point& point : series[i].points) {
      out += dot(frame.x(point.x), frame.y(point.y), colour(i),
                 prefix + reading(point.y) + " " + axes.y_label + " at " + reading(point.x) + " " +
                     axes.x_label);
    }
  }
  return out + "</svg>";
}

std::string histogram(const std::vector<double>& values, const Axes& axes) {
  require(!values.empty(), "a chart needs a point");
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const Range range = widened({sorted.front(), shown_end(sorted)});
  const size_t n_bins = std::clamp<size_t>(sorted.size() / 8, 8, kMaxBins);
  const double width = (range.high - range.low) / static_cast<double>(n_bins);
  std::vector<size_t> counts(n_bins, 0);
  size_t beyond = 0;
  for (const double value : sorted) {
    if (value > range.high) ++beyond;
    const auto bin = static_cast<size_t>(std::max(0.0, (value - range.low) / width));
    ++counts[std::min(bin, n_bins - 1)];
  }
  const size_t most = *std::max_element(counts.begin(), counts.end());
  const Frame frame(range.low, range.high, 0, static_cast<double>(most), axes);
  std::string out = open_svg(kHeight, axes.y_label + " by " + axes.x_label) + frame.axes(axes);
  for (size_t i = 0; i < n_bins; ++i) {
    if (counts[i] == 0) continue;
    const double begin = range.low + width * static_cast<double>(i);
    const double end = begin + width;
    const double top = frame.y(static_cast<double>(counts[i]));
    const std::string values_of_bin =
        i + 1 == n_bins && beyond > 0
            ? reading(begin) + " and more, up to " + reading(sorted.back())
            : reading(begin) + " to " + reading(end);
    out += bar(frame.x(begin) + 0.5, top, std::max(1.0, frame.x(end) - frame.x(begin) - 1),
               frame.y(0) - top, "", std::to_string(counts[i]) + " of " + values_of_bin);
  }
  if (beyond > 0) {
    out += text(kWidth - kRight, kTop + 12, "end",
                std::to_string(beyond) + " beyond, up to " + reading(sorted.back()), "note");
  }
  return out + "</svg>";
}

std::string distribution_chart(const std::vector<ChartSample>& samples,
                               const std::string& x_label) {
  std::vector<std::vector<double>> all;
  double end = 0;
  for (const ChartSample& sample : samples) {
    require(!sample.values.empty(), "a chart needs a point");
    all.push_back(sample.values);
    std::sort(all.back().begin(), all.back().end());
    end = std::max(end, shown_end(all.back()));
  }
  std::vector<Series> series;
  for (size_t i = 0; i < all.size(); ++i) series.push_back(steps_of(samples[i].name, all[i], end));
  return line_chart(series,
                    {.x_label = x_label, .y_label = "% of values at most", .markers = false});
}

std::string bar_chart(const std::vector<Bar>& bars, const std::optional<Limit>& limit) {
  require(!bars.empty(), "a chart needs a bar");
  constexpr double kRowHeight = 34;
  constexpr double kNames = 210;
  constexpr double kLabels = 150;
  double high = limit ? limit->value : 0;
  for (const Bar& bar : bars) high = std::max(high, bar.value);
  if (high <= 0) high = 1;
  const double height = kRowHeight * static_cast<double>(bars.size()) + 34;
  const auto x = [&](double value) { return kNames + value / high * (kWidth - kNames - kLabels); };
  std::string out = open_svg(height, "bars");
  for (size_t i = 0; i < bars.size(); ++i) {
    const double top = kRowHeight * static_cast<double>(i) + 6;
    out += text(kNames - 10, top + 15, "end", bars[i].name, "label");
    out +=
        bar(kNames, top, std::max(1.0, x(bars[i].value) - kNames), 22, " rx=\"3\"", bars[i].label);
    out += text(x(std::max(bars[i].value, limit ? limit->value : 0)) + 8, top + 15, "start",
                bars[i].label, "note");
  }
  if (limit) {
    out += line(x(limit->value), 0, x(limit->value), height - 24, "limit");
    out += text(x(limit->value), height - 8, "middle", limit->label, "note");
  }
  return out + "</svg>";
}

}  // namespace edgellm
