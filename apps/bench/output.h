// The forms in which `edgellm bench` prints its tests (-o).
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace edgellm {

// What stands above all tests: build, machine, GPU (docs/bench.md).
struct BenchHeader {
  nlohmann::ordered_json json;
  // Columns of the table for options that are not the same in all tests.
  bool show_kv_type = false;
  bool show_prefill_chunk = false;
};

class BenchOutput {
 public:
  virtual ~BenchOutput() = default;
  // `run` without its tests.
  virtual void test(const nlohmann::ordered_json& run, const nlohmann::ordered_json& test) = 0;
  // `report`: the whole object of -o json.
  virtual void end(const nlohmann::ordered_json& report) = 0;
};

// `format`: md, csv, json or jsonl. Prints to standard output, what it can as soon as it is known.
std::unique_ptr<BenchOutput> make_bench_output(const std::string& format, BenchHeader header);

// A number of a table with so many decimals, or "n/a".
std::string table_cell(const nlohmann::ordered_json& value, double unit, int decimals);

// A line of CSV, below the names if wanted; null is an empty cell.
std::string csv_lines(const std::vector<std::pair<std::string, nlohmann::ordered_json>>& fields,
                      bool with_names);

// The last line of a table: which program it was, as llama-bench says it.
std::string build_line(const nlohmann::ordered_json& build);

}  // namespace edgellm
