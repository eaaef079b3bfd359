// The results of `edgellm bench` as JSON (docs/bench.md). Tables and pages are made from it. Every
// metric is in every test: a value, or null with its reason under `not_available`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/bench/model_test.h"
#include "apps/bench/read_bandwidth.h"
#include "apps/common/measured.h"
#include "kernels/cuda/gpu_list.h"

namespace edgellm::bench {

// A model on a device with one setting of each option.
struct RunSetting {
  std::string model_name;            // for the table
  std::vector<std::string> devices;  // that work together, as BackendInfo names them
  bool on_gpu = false;
  int threads = 0;  // of all of them
  KvType kv_type = KvType::kI16;
  int prefill_chunk = 0;
  SamplingOptions sampling;
  int64_t load_ns = 0;
  ReadBandwidth bandwidth;         // of all devices together
  Measured<uint64_t> cache_bytes;  // of the largest cache of the device
  Measured<GpuInfo> gpu;
  Measured<std::shared_ptr<NvmlDevice>> sensors;
};

nlohmann::ordered_json model_json(const ModelFile& model, const std::string& name);

// The run's own fields; `tests` and `degradation` are added by the caller.
nlohmann::ordered_json run_json(const Backend& backend, const RunSetting& setting);

nlohmann::ordered_json test_json(const TestResult& result, const Backend& backend,
                                 const RunSetting& setting);

// How decode slows down with the depth: an entry for each number of tokens and sequences, over the
// decode tests of a run that differ only in depth.
nlohmann::ordered_json degradation_json(const std::vector<TestResult>& results);

// Numbers, texts and truth values of an object and of the objects in it, whose names are joined by
// "_". Arrays and reasons are left out.
std::vector<std::pair<std::string, nlohmann::ordered_json>> flat_fields(
    const nlohmann::ordered_json& object);

// A number over `unit` for a table, "n/a" for null.
std::string table_cell(const nlohmann::ordered_json& value, double unit, int decimals);

}  // namespace edgellm::bench
