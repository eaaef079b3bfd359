// The forms in which `edgellm bench` prints its tests (-o).
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace edgellm {

// What is the same for all tests (docs/bench.md).
struct BenchHeader {
  nlohmann::ordered_json json;  // schema, build, machine
  // Columns of the table, for options that are not at their default in all tests.
  bool show_kv_type = false;
  bool show_prefill_chunk = false;
  // All names of models and of tests that will come, for the widths of their columns.
  std::vector<std::string> model_names;
  std::vector<std::string> test_names;
};

class BenchOutput {
 public:
  virtual ~BenchOutput() = default;
  // `run` without its tests.
  virtual void test(const nlohmann::ordered_json& run, const nlohmann::ordered_json& test) = 0;
  // `report`: the whole object of -o json.
  virtual void end(const nlohmann::ordered_json& report) = 0;
};

// `format`: table, md, csv, json or jsonl. Prints to standard output. All forms but json print each
// test as it ends.
std::unique_ptr<BenchOutput> make_bench_output(const std::string& format, BenchHeader header);

// A line of CSV for a test or an op, on request below a line of names: build, date, CPU and run,
// then the fields of `measured`. Null is an empty cell.
std::string csv_lines(const nlohmann::ordered_json& header, const nlohmann::ordered_json& run,
                      const nlohmann::ordered_json& measured, bool with_names);

// The last line of a table: which build it was, in llama-bench's form.
std::string build_line(const nlohmann::ordered_json& build);

}  // namespace edgellm
