#include "apps/bench/output.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "apps/bench/report.h"
#include "apps/common/terminal.h"
#include "base/error.h"
#include "base/number_format.h"
#include "base/text.h"

namespace edgellm {
namespace {

using bench::table_cell;
using Json = nlohmann::ordered_json;

std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  std::string quoted = "\"";
  for (const char c : value.get<std::string>()) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

// What an average and its deviation look like, and a share of the memory's bandwidth.
std::string rate_cell(const Json& test) {
  return table_cell(test["avg_ts"], 1, 2) + " ± " + table_cell(test["stddev_ts"], 1, 2);
}

std::string share_cell(const Json& test) {
  const Json& share = test["read_bandwidth_share"];
  if (share.is_null()) return "n/a";
  return table_cell(share, 0.01, 0) + " %" + (test["step_fits_cache"] == true ? "*" : "");
}

constexpr const char* kCacheNote =
    "* what a token reads fits into the cache: GB/s is not the memory's\n";

// llama-bench's columns, then inter-token latencies and bandwidth.
class Markdown final : public BenchOutput {
 public:
  explicit Markdown(BenchHeader header) : header_(std::move(header)) {
    std::string titles = "| model | size | params | backend | threads |";
    std::string rule = "| --- | ---: | ---: | --- | ---: |";
    if (header_.show_kv_type) {
      titles += " type_kv |";
      rule += " ---: |";
    }
    if (header_.show_prefill_chunk) {
      titles += " n_ubatch |";
      rule += " ---: |";
    }
    titles += " test | t/s | p50 ms | p99 ms | GB/s | of mem BW |\n";
    rule += " ---: | ---: | ---: | ---: | ---: | ---: |\n";
    write_stdout(titles + rule);
  }

  void test(const Json& run, const Json& test) override {
    const Json& model = run["model"];
    std::string row = "| " + model["name"].get<std::string>() + " | " +
                      human_bytes(model["bytes"]) + " | " + human_count(model["params"]) + " | " +
                      run["backend"].get<std::string>() + " | " +
                      std::to_string(run["threads"].get<int>()) + " | ";
    if (header_.show_kv_type) row += run["kv_type"].get<std::string>() + " | ";
    if (header_.show_prefill_chunk) {
      row += std::to_string(run["prefill_chunk"].get<int>()) + " | ";
    }
    row += test["test"].get<std::string>() + " | " + rate_cell(test) + " | " +
           table_cell(test["itl"]["p50_ns"], 1e6, 3) + " | " +
           table_cell(test["itl"]["p99_ns"], 1e6, 3) + " | " +
           table_cell(test["achieved_gb_s"], 1, 1) + " | " + share_cell(test) + " |\n";
    cached_ = cached_ || test["step_fits_cache"] == true;
    write_stdout(row);
  }

  void end(const Json& report) override {
    std::string text = "\n";
    if (cached_) text += kCacheNote;
    for (const Json& run : report["runs"]) {
      text += run["model"]["name"].get<std::string>() + " on " + run["device"].get<std::string>() +
              ": memory read at " + table_cell(run["read_bandwidth"]["gb_s"], 1, 1) +
              " GB/s, loaded in " + table_cell(run["load_ns"], 1e9, 2) + " s\n";
    }
    write_stdout(text + build_line(report["build"]));
  }

 private:
  BenchHeader header_;
  bool cached_ = false;
};

// For a terminal: columns that stand below each other, in 80 columns where names are short. Size,
// parameters and device are said once, below.
class Table final : public BenchOutput {
 public:
  explicit Table(const BenchHeader& header) {
    size_t model_width = 5;
    for (const std::string& name : header.model_names) {
      model_width = std::max(model_width, name.size());
    }
    size_t test_width = 4;
    for (const std::string& name : header.test_names) {
      test_width = std::max(test_width, name.size());
    }
    const auto of_latency = [](const char* percentile) {
      return [=](const Json&, const Json& test) {
        return table_cell(test["itl"][percentile], 1e6, 3);
      };
    };
    if (header.model_names.size() > 1) {
      add_column("model", model_width, true,
                 [](const Json& run, const Json&) { return run["model"]["name"]; });
    }
    add_column("on", 7, true, [](const Json& run, const Json&) -> std::string {
      const std::string backend = run["backend"];
      return backend == "CPU" ? "CPU x" + run["threads"].dump() : backend;
    });
    if (header.show_kv_type) {
      add_column("KV", 3, true, [](const Json& run, const Json&) { return run["kv_type"]; });
    }
    if (header.show_prefill_chunk) {
      add_column("chunk", 5, false,
                 [](const Json& run, const Json&) { return run["prefill_chunk"].dump(); });
    }
    add_column("test", test_width, true,
               [](const Json&, const Json& test) { return test["test"]; });
    add_column("tok/s", 17, false, [](const Json&, const Json& test) { return rate_cell(test); });
    add_column("p50 ms", 7, false, of_latency("p50_ns"));
    add_column("p99 ms", 7, false, of_latency("p99_ns"));
    add_column("GB/s", 6, false, [](const Json&, const Json& test) {
      return table_cell(test["achieved_gb_s"], 1, 1);
    });
    add_column("of mem BW", 9, false,
               [](const Json&, const Json& test) { return share_cell(test); });
    std::vector<std::string> titles;
    for (const Column& column : columns_) titles.push_back(column.title);
    write_stdout(line(titles));
  }

  void test(const Json& run, const Json& test) override {
    std::vector<std::string> cells;
    for (const Column& column : columns_) cells.push_back(column.cell(run, test));
    cached_ = cached_ || test["step_fits_cache"] == true;
    write_stdout(line(cells));
  }

  void end(const Json& report) override {
    std::string text = "\n";
    if (cached_) text += kCacheNote;
    for (const Json& run : report["runs"]) {
      const Json& model = run["model"];
      text += model["name"].get<std::string>() + ", " + human_bytes(model["bytes"]) + ", " +
              human_count(model["params"]) + " parameters, on " + run["device"].get<std::string>() +
              ": memory read at " + table_cell(run["read_bandwidth"]["gb_s"], 1, 1) +
              " GB/s, loaded in " + table_cell(run["load_ns"], 1e9, 2) + " s\n";
    }
    write_stdout(text + build_line(report["build"]));
  }

 private:
  using Cell = std::function<std::string(const Json& run, const Json& test)>;
  struct Column {
    std::string title;
    size_t width;
    bool to_left;
    Cell cell;
  };

  void add_column(const char* title, size_t width, bool to_left, Cell cell) {
    columns_.push_back({title, width, to_left, std::move(cell)});
  }

  std::string line(const std::vector<std::string>& cells) const {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      const Column& column = columns_[i];
      const size_t width = count_characters(cells[i]);
      const std::string spaces(column.width - std::min(column.width, width), ' ');
      text += (i > 0 ? "  " : "") + (column.to_left ? cells[i] + spaces : spaces + cells[i]);
    }
    return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }

  std::vector<Column> columns_;
  bool cached_ = false;
};

// A row for each test: what identifies the run, then every number of the test's object.
class Csv final : public BenchOutput {
 public:
  explicit Csv(BenchHeader header) : header_(std::move(header)) {}

  void test(const Json& run, const Json& test) override {
    write_stdout(csv_lines(header_.json, run, test, first_));
    first_ = false;
  }
  void end(const Json&) override {}

 private:
  BenchHeader header_;
  bool first_ = true;
};

class JsonObject final : public BenchOutput {
 public:
  void test(const Json&, const Json&) override {}
  void end(const Json& report) override { print_json(report); }
};

// A line for each test: an object with all that identifies the test.
class JsonLines final : public BenchOutput {
 public:
  explicit JsonLines(BenchHeader header) : header_(std::move(header)) {}
  void test(const Json& run, const Json& test) override {
    print_json({{"schema", "edgellm.bench-test/1"},
                {"build", header_.json["build"]},
                {"machine", header_.json["machine"]},
                {"run", run},
                {"test", test}});
  }
  void end(const Json&) override {}

 private:
  BenchHeader header_;
};

}  // namespace

std::unique_ptr<BenchOutput> make_bench_output(const std::string& format, BenchHeader header) {
  if (format == "table") return std::make_unique<Table>(header);
  if (format == "md") return std::make_unique<Markdown>(std::move(header));
  if (format == "csv") return std::make_unique<Csv>(std::move(header));
  if (format == "jsonl") return std::make_unique<JsonLines>(std::move(header));
  require(format == "json", "an output format that the options do not allow");
  return std::make_unique<JsonObject>();
}

std::string csv_lines(const Json& header, const Json& run, const Json& measured, bool with_names) {
  Json identity = {{"build_version", header["build"]["version"]},
                   {"build_revision", header["build"]["revision"]},
                   {"date", header["machine"]["date"]},
                   {"cpu", header["machine"]["cpu"]}};
  identity.update(run);
  std::vector<std::pair<std::string, Json>> fields = bench::flat_fields(identity);
  std::set<std::string> names_of_run;
  for (const auto& [name, value] : fields) names_of_run.insert(name);
  for (auto& [name, value] : bench::flat_fields(measured)) {
    fields.emplace_back(names_of_run.contains(name) ? "test_" + name : name, std::move(value));
  }
  std::string names;
  std::string values;
  for (const auto& [name, value] : fields) {
    names += "," + name;
    values += "," + csv_cell(value);
  }
  return (with_names ? names.substr(1) + "\n" : "") + values.substr(1) + "\n";
}

std::string build_line(const Json& build) {
  return "build: " + build["revision"].get<std::string>() + " (" +
         build["version"].get<std::string>() + ")\n";
}

}  // namespace edgellm
