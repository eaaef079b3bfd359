#include "apps/bench/output.h"

#include <utility>
#include <vector>

#include "apps/bench/report.h"
#include "apps/common/terminal.h"
#include "base/error.h"
#include "base/number_format.h"

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
    titles += " test | t/s | p50 ms | p99 ms | GB/s | of memory |\n";
    rule += " ---: | ---: | ---: | ---: | ---: | ---: |\n";
    write_stdout(titles + rule);
  }

  void test(const Json& run, const Json& test) override {
    const Json& model = run["model"];
    std::string row = "| " + model["name"].get<std::string>() + " | " +
                      bench::binary_size(model["bytes"]) + " | " + human_count(model["params"]) +
                      " | " + run["backend"].get<std::string>() + " | " +
                      std::to_string(run["threads"].get<int>()) + " | ";
    if (header_.show_kv_type) row += run["kv_type"].get<std::string>() + " | ";
    if (header_.show_prefill_chunk) {
      row += std::to_string(run["prefill_chunk"].get<int>()) + " | ";
    }
    const Json& share = test["read_bandwidth_share"];
    const bool in_cache = test["step_fits_cache"] == true;
    row += test["test"].get<std::string>() + " | " + table_cell(test["avg_ts"], 1, 2) + " ± " +
           table_cell(test["stddev_ts"], 1, 2) + " | " + table_cell(test["itl"]["p50_ns"], 1e6, 3) +
           " | " + table_cell(test["itl"]["p99_ns"], 1e6, 3) + " | " +
           table_cell(test["achieved_gb_s"], 1, 1) + " | " +
           (share.is_null() ? "n/a" : table_cell(share, 0.01, 0) + " %" + (in_cache ? "*" : "")) +
           " |\n";
    cached_ = cached_ || in_cache;
    write_stdout(row);
  }

  void end(const Json& report) override {
    std::string text = "\n";
    if (cached_) text += "* what a token reads fits into the cache: GB/s is not the memory's\n";
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
  for (auto& field : bench::flat_fields(measured)) fields.push_back(std::move(field));
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
