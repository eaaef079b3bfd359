#include "apps/bench/report_page.h"

#include <algorithm>
#include <map>
#include <set>

#include "apps/bench/report.h"
#include "apps/common/html_page.h"
#include "apps/common/svg_chart.h"
#include "base/number_format.h"

namespace edgellm::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxCurves = 6;  // colours that can be told apart

// A test and the run that it belongs to.
struct Entry {
  const Json* run;
  const Json* test;

  bool is_decode() const { return (*test)["n_gen"].get<int>() > 0; }
  std::string test_name() const { return (*test)["test"]; }
};

std::string percent(const Json& share) {
  return share.is_null() ? "n/a" : table_cell(share, 0.01, 0) + " %";
}

std::string model_name(const Json& run) { return run["model"]["name"]; }

// What tells a run from the others, and nothing more.
std::string run_name(const Json& run, const Json& runs) {
  const auto differs = [&](auto&& field) {
    return std::any_of(runs.begin(), runs.end(),
                       [&](const Json& other) { return field(other) != field(run); });
  };
  std::vector<std::string> parts;
  const auto add = [&](auto&& field, auto&& text) {
    if (differs(field)) parts.push_back(text(field(run)));
  };
  const auto as_is = [](const Json& value) { return value.get<std::string>(); };
  add([](const Json& r) -> Json { return r["model"]["name"]; }, as_is);
  add([](const Json& r) -> Json { return r["backend"]; }, as_is);
  add([](const Json& r) -> Json { return r["threads"]; },
      [](const Json& value) { return counted(value, "thread"); });
  add([](const Json& r) -> Json { return r["kv_type"]; }, as_is);
  add([](const Json& r) -> Json { return r["prefill_chunk"]; },
      [](const Json& value) { return "chunks of " + value.dump(); });
  std::string name;
  for (const std::string& part : parts) name += (name.empty() ? "" : ", ") + part;
  return name;
}

// What a caption adds where there are more curves than colours.
std::string left_out(size_t n_curves) {
  if (n_curves <= kMaxCurves) return "";
  return " The first " + std::to_string(kMaxCurves) + " of " + std::to_string(n_curves) +
         " are drawn; the tables below have all.";
}

std::string joined(const std::string& run, const std::string& test) {
  return run.empty() ? test : run + ", " + test;
}

// Every number and text of an object as a name and its value. A missing one is "n/a: reason".
std::vector<std::pair<std::string, std::string>> facts_of(const Json& object) {
  std::vector<std::pair<std::string, std::string>> facts;
  for (const auto& [name, value] : object.items()) {
    if (name == "not_available") continue;
    std::string shown = name;
    std::replace(shown.begin(), shown.end(), '_', ' ');
    if (value.is_object()) {
      for (const auto& [inner, text] : facts_of(value))
        facts.emplace_back(shown + " " + inner, text);
    } else if (value.is_null()) {
      facts.emplace_back(shown, "n/a: " + object["not_available"][name].get<std::string>());
    } else {
      facts.emplace_back(shown, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return facts;
}

class Page {
 public:
  explicit Page(const Json& report)
      : report_(report), runs_(report["runs"]), page_(title(), subtitle()) {
    for (const Json& run : runs_) {
      for (const Json& test : run["tests"]) entries_.push_back({&run, &test});
    }
  }

  std::string text() {
    tiles();
    speed_by_depth();
    inter_token_latencies();
    roofline();
    power();
    tables();
    reproducibility();
    return page_.text();
  }

 private:
  std::string title() const {
    std::vector<std::string> names;
    for (const Json& run : runs_) {
      const std::string name = model_name(run);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    std::string all = "edgellm bench";
    for (size_t i = 0; i < names.size(); ++i) all += (i == 0 ? ": " : ", ") + names[i];
    return all;
  }

  std::string subtitle() const {
    std::set<std::string> devices;
    for (const Json& run : runs_) devices.insert(run["device"].get<std::string>());
    std::string text;
    for (const std::string& device : devices) text += device + " · ";
    return text + report_["machine"]["date"].get<std::string>() + " · edgellm " +
           report_["build"]["version"].get<std::string>() + " (" +
           report_["build"]["revision"].get<std::string>() + ")";
  }

  // Of the first decode test and the first prefill test.
  void tiles() {
    std::vector<Tile> tiles;
    const auto first = [&](bool decode) {
      return std::find_if(entries_.begin(), entries_.end(),
                          [&](const Entry& entry) { return entry.is_decode() == decode; });
    };
    if (const auto entry = first(true); entry != entries_.end()) {
      const Json& test = *entry->test;
      tiles = decode_tiles(test, joined(run_name(*entry->run, runs_), entry->test_name()));
    }
    if (const auto entry = first(false); entry != entries_.end()) {
      const Json& test = *entry->test;
      tiles.push_back({"Prefill", table_cell(test["avg_ts"], 1, 0) + " tok/s",
                       "first token after " + table_cell(test["ttft"]["p50_ns"], 1e6, 1) + " ms, " +
                           entry->test_name()});
    }
    page_.tiles(tiles);
  }

  static std::vector<Tile> decode_tiles(const Json& test, const std::string& name) {
    const Json& itl = test["itl"];
    const bool cached = test["step_fits_cache"] == true;
    std::vector<Tile> tiles = {{"Decode", table_cell(test["avg_ts"], 1, 1) + " tok/s",
                                "± " + table_cell(test["stddev_ts"], 1, 1) + ", " + name},
                               {"Inter-token latency", table_cell(itl["p50_ns"], 1e6, 2) + " ms",
                                "p99 " + table_cell(itl["p99_ns"], 1e6, 2) + ", longest " +
                                    table_cell(itl["max_ns"], 1e6, 2)},
                               {"Of the memory's speed", percent(test["read_bandwidth_share"]),
                                table_cell(test["achieved_gb_s"], 1, 1) + " of " +
                                    table_cell(test["read_bandwidth_gb_s"], 1, 1) + " GB/s" +
                                    (cached ? ", in cache" : "")}};
    const Json& energy = test["gpu"]["j_per_token"];
    if (!energy.is_null()) {
      tiles.push_back({"Energy of the GPU", table_cell(energy, 0.001, 1) + " mJ/token",
                       table_cell(test["gpu"]["power_w_from_energy"], 1, 0) + " W on average"});
    }
    return tiles;
  }

  void speed_by_depth() {
    std::map<std::string, size_t> index;  // of a series, by its name
    std::vector<Series> series;
    for (const Entry& entry : entries_) {
      if (!entry.is_decode()) continue;
      const Json& test = *entry.test;
      std::string name = "tg" + test["n_gen"].dump();
      if (test["n_batch"] != 1) name += " x" + test["n_batch"].dump();
      name = joined(run_name(*entry.run, runs_), name);
      const auto [place, is_new] = index.emplace(name, series.size());
      if (is_new) series.push_back({name, {}});
      series[place->second].points.push_back({test["n_depth"], test["median_ts"]});
    }
    std::erase_if(series, [](const Series& one) { return one.points.size() < 2; });
    if (series.empty()) return;
    for (Series& one : series) {
      std::sort(one.points.begin(), one.points.end(),
                [](const Point& a, const Point& b) { return a.x < b.x; });
    }
    const size_t n_series = series.size();
    if (series.size() > kMaxCurves) series.resize(kMaxCurves);
    page_.figure("Decode speed against depth",
                 line_chart(series, {.x_label = "tokens in the context before decoding",
                                     .y_label = "tokens/s",
                                     .x_whole = true}),
                 "Median of the runs of each test. The longer the context, the more keys and "
                 "values a token reads." +
                     left_out(n_series));
  }

  void inter_token_latencies() {
    std::vector<ChartSample> samples;
    size_t n_tests = 0;
    for (const Entry& entry : entries_) {
      const Json& latencies_ns = (*entry.test)["gaps_ns"];
      if (latencies_ns.empty() || ++n_tests > kMaxCurves) continue;
      ChartSample sample{joined(run_name(*entry.run, runs_), entry.test_name()), {}};
      for (const Json& ns : latencies_ns) sample.values.push_back(ns.get<double>() / 1e6);
      samples.push_back(std::move(sample));
    }
    if (samples.empty()) return;
    page_.figure(
        "Inter-token latency: " + samples.front().name,
        histogram(samples.front().values, {.x_label = "ms", .y_label = "tokens", .y_whole = true}),
        "Of all runs of the test together. A steady stream is one narrow peak.");
    page_.figure("Time between two tokens: distribution", distribution_chart(samples, "ms"),
                 "The share of inter-token latencies up to each value. The further right a curve "
                 "bends at its top, the rarer and longer are its stalls." +
                     left_out(n_tests));
  }

  void roofline() {
    for (const Json& run : runs_) {
      std::vector<Bar> bars;
      for (const Json& test : run["tests"]) {
        const Json& rate = test["achieved_gb_s"];
        if (rate.is_null()) continue;
        bars.push_back(
            {test["test"], rate,
             table_cell(rate, 1, 1) + " GB/s, " + percent(test["read_bandwidth_share"])});
      }
      if (bars.empty()) continue;
      const double limit = run["read_bandwidth"]["gb_s"];
      const std::string name = run_name(run, runs_);
      page_.figure("Bytes read against what the memory gives" + (name.empty() ? "" : ": " + name),
                   bar_chart(bars, Limit{limit, "memory " + fixed(limit, 1) + " GB/s"}),
                   "A decoded token reads all weights and the cache once: its bytes times the "
                   "tokens of a second, against a loop that only reads, measured in the same run.");
    }
  }

  void power() {
    std::vector<Series> series;
    size_t n_tests = 0;
    std::string reason;
    for (const Entry& entry : entries_) {
      const Json& gpu = (*entry.test)["gpu"];
      if (gpu["power_samples"].size() < 2) {
        if (gpu["power_w_mean"].is_null()) reason = gpu["not_available"]["power_w_mean"];
        continue;
      }
      if (++n_tests > kMaxCurves) continue;
      Series one{joined(run_name(*entry.run, runs_), entry.test_name()), {}};
      for (const Json& sample : gpu["power_samples"]) {
        one.points.push_back({sample[0].get<double>() / 1e9, sample[1]});
      }
      series.push_back(std::move(one));
    }
    if (series.empty()) {
      page_.heading("Power");
      page_.paragraph("n/a: " + (reason.empty() ? "too few samples" : reason) + ".");
      return;
    }
    page_.figure(
        "Power of the GPU over time",
        line_chart(series, {.x_label = "s", .y_label = "W", .markers = false}),
        "Read while each test ran again and again, in runs of their own." + left_out(n_tests));
  }

  void tables() {
    page_.heading("All tests");
    std::vector<std::vector<std::string>> rates;
    std::vector<std::vector<std::string>> latencies;
    for (const Entry& entry : entries_) {
      const Json& run = *entry.run;
      const Json& test = *entry.test;
      rates.push_back(
          {model_name(run), run["backend"], run["threads"].dump(), run["kv_type"],
           entry.test_name(), table_cell(test["avg_ts"], 1, 2), table_cell(test["stddev_ts"], 1, 2),
           table_cell(test["median_ts"], 1, 2), table_cell(test["ttft"]["p50_ns"], 1e6, 2),
           table_cell(test["achieved_gb_s"], 1, 1), percent(test["read_bandwidth_share"]),
           table_cell(test["bytes_per_token"]["total"], 1e6, 2),
           table_cell(test["cpu_ns_per_token"], 1e6, 3),
           table_cell(test["gpu"]["j_per_token"], 0.001, 2)});
      if (!entry.is_decode()) continue;
      const Json& itl = test["itl"];
      std::vector<std::string> row = {model_name(run), run["backend"], entry.test_name()};
      for (const char* field : {"mean_ns", "p50_ns", "p90_ns", "p95_ns", "p99_ns", "max_ns",
                                "jitter_ns", "stddev_ns", "longest_stall_ns"}) {
        row.push_back(table_cell(itl[field], 1e6, 3));
      }
      latencies.push_back(std::move(row));
    }
    page_.table({"model", "backend", "threads", "KV", "test", "tok/s", "±", "median", "TTFT ms",
                 "GB/s", "of mem BW", "MB/token", "CPU ms/token", "mJ/token"},
                rates);
    if (latencies.empty()) return;
    page_.heading("Inter-token latency, ms");
    page_.table({"model", "backend", "test", "mean", "p50", "p90", "p95", "p99", "max",
                 "jitter p99 − p50", "deviation", "longest stall"},
                latencies);
  }

  void reproducibility() {
    page_.heading("Test setup");
    std::vector<std::pair<std::string, std::string>> facts = facts_of(report_["build"]);
    for (auto& fact : facts_of(report_["machine"])) facts.push_back(std::move(fact));
    page_.facts(facts);
    for (const Json& run : runs_) {
      Json own = run;
      own.erase("tests");
      own.erase("degradation");
      const std::string name = run_name(run, runs_);
      page_.heading("Run" + (name.empty() ? "" : ": " + name));
      page_.facts(facts_of(own));
    }
  }

  const Json& report_;
  const Json& runs_;
  std::vector<Entry> entries_;
  HtmlPage page_;
};

}  // namespace

std::string report_page(const Json& report) { return Page(report).text(); }

}  // namespace edgellm::bench
