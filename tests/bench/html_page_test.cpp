// Pages and charts: well-formed, self-contained, true to their numbers.
#include "apps/common/html_page.h"

#include <catch2/catch.hpp>
#include <limits>
#include <regex>

#include "apps/common/svg_chart.h"

namespace edgellm::bench {
namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Every element is closed, in order; no attribute is left open.
void check_well_formed(const std::string& markup) {
  static const std::regex tag(R"(<(/?)([a-z0-9]+)((?:\s+[a-zA-Z0-9-]+(?:="[^"<]*")?)*)\s*(/?)>)");
  std::vector<std::string> open;
  size_t n_tags = 0;
  for (std::sregex_iterator it(markup.begin(), markup.end(), tag), end; it != end; ++it) {
    ++n_tags;
    const std::string name = (*it)[2];
    if ((*it)[4] == "/" || name == "meta" || name == "link") continue;
    if ((*it)[1] == "/") {
      REQUIRE(!open.empty());
      CHECK(open.back() == name);
      open.pop_back();
    } else {
      open.push_back(name);
    }
  }
  CHECK(open.empty());
  const size_t doctype = markup.starts_with("<!DOCTYPE") ? 1 : 0;
  CHECK(count_of(markup, "<") == n_tags + doctype);  // nothing looks like a tag and is none
}

TEST_CASE("ticks are round and enclose the range") {
  CHECK(nice_ticks(0, 97, 5) == std::vector<double>{0, 20, 40, 60, 80, 100});
  CHECK(nice_ticks(0, 1000, 4) == std::vector<double>{0, 250, 500, 750, 1000});
  CHECK(nice_ticks(3, 3, 4).front() <= 3);
  CHECK(nice_ticks(3, 3, 4).size() >= 2);
  CHECK(nice_ticks(0, 0, 4).size() >= 2);
  for (const double high : {1e-7, 0.33, 7.0, 12345.0, 1e12}) {
    const std::vector<double> ticks = nice_ticks(0, high, 5);
    INFO(high);
    CHECK(ticks.front() == 0);
    CHECK(ticks.back() >= high * (1 - 1e-9));
    CHECK(ticks.size() <= 9);
  }
  CHECK_THROWS(nice_ticks(0, std::numeric_limits<double>::infinity(), 5));
  for (const double high : {1.0, 2.0, 7.0, 18.0, 97.0, 12345.0}) {
    for (const int n : {3, 5, 8}) {
      for (const double tick : nice_ticks(1, high, n, /*whole=*/true)) {
        INFO(high << " " << n);
        CHECK(tick == std::round(tick));
      }
    }
  }
}

TEST_CASE("labels of ticks have the decimals that tell what they are") {
  CHECK(tick_label(2.5, 2.5) == "2.5");
  CHECK(tick_label(5, 2.5) == "5.0");
  CHECK(tick_label(0.25, 0.25) == "0.25");
  CHECK(tick_label(0.2, 0.1) == "0.2");
  CHECK(tick_label(0.0001, 0.0001) == "0.0001");
  CHECK(tick_label(250, 250) == "250");
  CHECK(tick_label(3e-12, 1e-12) == "0.000000000");
  // Two pairs are no axis of 1.0, 1.2, 1.4.
  const std::vector<Series> two = {{"a", {{1, 10}, {2, 9}}}};
  const std::string chart = line_chart(two, {.x_label = "pair", .y_label = "y", .x_whole = true});
  CHECK(count_of(chart, ">1.2<") == 0);
  CHECK(count_of(chart, ">2<") == 2);  // of both axes
}

TEST_CASE("a line chart has a dot for each point and a legend for several series") {
  const std::vector<Series> one = {{"a", {{0, 10}, {1024, 9}, {4096, 7}}}};
  const std::string single = line_chart(one, {.x_label = "depth", .y_label = "tokens/s"});
  check_well_formed(single);
  CHECK(count_of(single, "<circle") == 3);
  CHECK(count_of(single, "legend") == 0);
  CHECK(count_of(single, "9 tokens/s at 1024 depth") == 1);
  const std::vector<Series> two = {one[0], {"b <&>", {{0, 1}}}};
  const std::string both = line_chart(two, {.x_label = "depth", .y_label = "tokens/s"});
  check_well_formed(both);
  CHECK(count_of(both, "<li>") == 2);
  CHECK(count_of(both, "b &lt;&amp;&gt;") == 2);
}

TEST_CASE("a histogram loses no value, a stall does not flatten it") {
  std::vector<double> values(200, 10.0);
  for (int i = 0; i < 100; ++i) values.push_back(10 + 0.1 * i);
  values.push_back(5000);
  const std::string chart = histogram(values, {.x_label = "ms", .y_label = "tokens"});
  check_well_formed(chart);
  size_t total = 0;
  static const std::regex title(R"(<title>(\d+) of )");
  for (std::sregex_iterator it(chart.begin(), chart.end(), title), end; it != end; ++it) {
    total += std::stoul((*it)[1]);
  }
  CHECK(total == values.size());
  CHECK(count_of(chart, "1 beyond, up to 5000") == 1);
  CHECK(count_of(chart, "<rect") > 4);
  check_well_formed(histogram({7.0}, {.x_label = "ms", .y_label = "tokens"}));
}

TEST_CASE("bars and distributions of the least they can be given") {
  check_well_formed(bar_chart({{"tg128", 12, "12 GB/s"}}, Limit{30, "30 GB/s"}));
  check_well_formed(bar_chart({{"tg128", 0, "none"}}, std::nullopt));
  check_well_formed(distribution_chart({{"a", {1, 1, 2}}, {"b", {3}}}, "ms"));
  CHECK_THROWS(bar_chart({}, std::nullopt));
  CHECK_THROWS(line_chart({}, {}));
}

TEST_CASE("a page needs nothing from anywhere and escapes what it shows") {
  HtmlPage page("edgellm <bench>", "\"quoted\" & more");
  page.heading("One");
  page.paragraph("a\x01z");
  page.tiles({{"tokens/s", "12.5", ""}});
  page.table({"test", "t/s"}, {{"<script>alert(1)</script>", "12.5"}, {"pp512", "n/a"}});
  page.facts({{"CPU", "x'y"}});
  page.figure("chart", bar_chart({{"a", 1, "1"}}, std::nullopt), "how to read it");
  const std::string text = page.text();
  check_well_formed(text);
  CHECK(text.starts_with("<!DOCTYPE html>"));
  CHECK(count_of(text, "http") == 0);
  CHECK(count_of(text, "url(") == 0);
  CHECK(count_of(text, "<script") == 0);
  CHECK(count_of(text, "@import") == 0);
  CHECK(count_of(text, "prefers-color-scheme:dark") == 1);
  CHECK(count_of(text, "a\uFFFDz") == 1);
  CHECK(count_of(text, "<td class=\"n\">12.5</td>") == 1);
  CHECK_THROWS(page.table({"one"}, {{"a", "b"}}));
}

}  // namespace
}  // namespace edgellm::bench
