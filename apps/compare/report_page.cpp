// The page of `edgellm compare --html`.
#include "apps/common/html_page.h"
#include "apps/common/svg_chart.h"
#include "apps/compare/report.h"
#include "base/number_format.h"

namespace edgellm::compare {
namespace {

std::vector<double> latencies_in_ms(const Comparison& comparison, Sample Pair::*side) {
  std::vector<double> latencies;
  for (const Pair& pair : comparison.pairs) {
    for (const int64_t ns : (pair.*side).inter_token_ns)
      latencies.push_back(static_cast<double>(ns) / 1e6);
  }
  return latencies;
}

// The first row holds the titles.
void add_table(HtmlPage& page, std::vector<std::vector<std::string>> rows) {
  const std::vector<std::string> titles = rows.front();
  rows.erase(rows.begin());
  page.table(titles, rows);
}

}  // namespace

std::string to_html(const Comparison& comparison) {
  const std::string& server = comparison.theirs.software;
  HtmlPage page("edgellm and " + server, comparison.ours.path + " against " +
                                             comparison.theirs.model + ", " +
                                             comparison.machine.date);
  std::vector<Tile> tiles;
  for (const VerdictRow& row : verdict(comparison)) {
    if (row.metric != "decode" && row.metric != "TTFT" && row.metric != "memory") continue;
    std::string note =
        value_text(row.ours, row.unit) + " against " + value_text(row.theirs, row.unit);
    if (row.ratio && row.ratio->n > 1) {
      note += "; over the pairs " + fixed(row.ratio->min, 2) + " to " + fixed(row.ratio->max, 2);
    }
    tiles.push_back({row.metric, row.ratio ? fixed(row.ratio->median, 2) + "x" : "n/a", note});
  }
  tiles.push_back({"same weights", comparison.same_weights.same ? "yes" : "no",
                   comparison.same_weights.reason});
  page.tiles(tiles);

  page.heading("Verdict");
  page.paragraph("Both sides by the same wall clock, " + std::to_string(comparison.pairs.size()) +
                 " pairs in the order A B B A. A ratio above 1 is in edgellm's favour; in brackets "
                 "its range over the pairs.");
  add_table(page, verdict_table(comparison));
  for (const std::string& sentence : remarks(comparison)) page.paragraph(sentence);

  const std::vector<double> ours = latencies_in_ms(comparison, &Pair::ours);
  const std::vector<double> theirs = latencies_in_ms(comparison, &Pair::theirs);
  std::vector<ChartSample> samples;
  if (!ours.empty()) samples.push_back({"edgellm", ours});
  if (!theirs.empty()) samples.push_back({server, theirs});
  page.heading("Inter-token latency");
  if (!samples.empty()) {
    page.figure(
        "Inter-token latency", distribution_chart(samples, "milliseconds between tokens"),
        "The share of inter-token latencies up to each value: further left is faster, steeper "
        "is steadier.");
  }
  add_table(page, latency_table(comparison));
  std::vector<Series> series;
  for (const auto& [name, side] :
       {std::pair{std::string("edgellm"), &Pair::ours}, std::pair{server, &Pair::theirs}}) {
    Series one = {name, {}};
    for (size_t i = 0; i < comparison.pairs.size(); ++i) {
      const Measured<double>& tps = (comparison.pairs[i].*side).decode_tps;
      if (tps) one.points.push_back({static_cast<double>(i + 1), *tps});
    }
    if (!one.points.empty()) series.push_back(one);
  }
  if (!series.empty()) {
    page.figure(
        "Decode speed of every pair",
        line_chart(series, {.x_label = "pair", .y_label = "tokens per second", .x_whole = true}),
        "Lines that drift together show a machine that changed, not a program.");
  }

  page.heading("By each side's own clock");
  page.table({"figure", "edgellm", server}, own_figures(comparison));
  page.heading("A: edgellm");
  page.facts(facts(comparison.ours));
  page.heading("B: " + server);
  page.facts(facts(comparison.theirs));
  page.heading("Machine");
  page.facts({{"CPU", comparison.machine.cpu},
              {"instruction set", comparison.machine.isa},
              {"cores", std::to_string(comparison.machine.usable_cores)},
              {"system", comparison.machine.os + ", " + comparison.machine.kernel},
              {"date", comparison.machine.date}});
  return page.text();
}

}  // namespace edgellm::compare
