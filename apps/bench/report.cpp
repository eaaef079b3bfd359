#include "apps/bench/report.h"

#include <algorithm>
#include <map>

#include "apps/common/statistics.h"
#include "apps/session/sampling_choice.h"
#include "base/hash.h"
#include "base/number_format.h"
#include "base/text.h"
#include "engine/kv_type.h"
#include "engine/token_bytes.h"

namespace edgellm::bench {
namespace {

using Json = nlohmann::ordered_json;

// Bytes that decoding one token reads. The cache's include the position that it writes.
struct TokenBytes {
  double weights = 0;
  double kv_cache = 0;
  double total() const { return weights + kv_cache; }
};

TokenBytes bytes_per_token(const TestResult& result, const Backend& backend, KvType kv_type) {
  const ModelFile& model = backend.model();
  const ModelConfig& config = model.config();
  const TestSpec& spec = result.spec;
  TokenBytes bytes;
  const bool certified = result.head.steps > 0;
  // A step reads the weights once for all its sequences.
  bytes.weights = static_cast<double>(weight_bytes_per_token(
                      model, certified ? backend.memory().certified_head : 0)) /
                  spec.batch;
  if (certified) {
    const double element_bytes = model.weights().head.dtype == DType::kF32 ? 4 : 2;
    bytes.weights += static_cast<double>(result.head.rescored) /
                     static_cast<double>(result.head.steps) * config.dim * element_bytes;
  }
  // A token's row attends to all positions before it and to itself.
  const double positions = spec.depth + (spec.tokens + 1) / 2.0;
  bytes.kv_cache = static_cast<double>(kv_cache_bytes(config, 1, kv_type)) * positions;
  return bytes;
}

Json latency_json(const Measured<LatencySummary>& latency) {
  Json json = Json::object();
  const auto field = [&](const char* name, auto&& pick) { put(json, name, latency.map(pick)); };
  field("n", [](const LatencySummary& l) { return l.n; });
  field("mean_ns", [](const LatencySummary& l) { return l.mean_ns; });
  field("stddev_ns", [](const LatencySummary& l) { return l.stddev_ns; });
  field("variance_ns2", [](const LatencySummary& l) { return l.variance_ns2; });
  field("min_ns", [](const LatencySummary& l) { return l.min_ns; });
  field("p50_ns", [](const LatencySummary& l) { return l.p50_ns; });
  field("p90_ns", [](const LatencySummary& l) { return l.p90_ns; });
  field("p95_ns", [](const LatencySummary& l) { return l.p95_ns; });
  field("p99_ns", [](const LatencySummary& l) { return l.p99_ns; });
  field("max_ns", [](const LatencySummary& l) { return l.max_ns; });
  field("jitter_ns", [](const LatencySummary& l) { return l.jitter_ns(); });
  field("longest_stall_ns", [](const LatencySummary& l) { return l.longest_stall_ns(); });
  return json;
}

Measured<LatencySummary> inter_token_latency(const TestResult& result) {
  if (result.spec.kind == TestSpec::Kind::kPrefill) {
    return NotAvailable{"a prefill test makes one token"};
  }
  if (result.inter_token_ns.empty()) {
    return NotAvailable{"one token has no inter-token latency; use -n 2 or more"};
  }
  return summarise_latencies(result.inter_token_ns);
}

void put_bandwidth(Json& json, const TestResult& result, const Backend& backend,
                   const RunSetting& setting, double tokens_per_s) {
  Measured<TokenBytes> bytes =
      NotAvailable{"a prefill reads each weight for many tokens at once: arithmetic is its limit"};
  if (result.spec.kind == TestSpec::Kind::kDecode) {
    bytes = bytes_per_token(result, backend, setting.kv_type);
  }
  Json per_token = Json::object();
  put(per_token, "weights", bytes.map([](const TokenBytes& b) { return b.weights; }));
  put(per_token, "kv_cache", bytes.map([](const TokenBytes& b) { return b.kv_cache; }));
  put(per_token, "total", bytes.map([](const TokenBytes& b) { return b.total(); }));
  json["bytes_per_token"] = per_token;
  const auto gb_s = bytes.map([&](const TokenBytes& b) { return b.total() * tokens_per_s / 1e9; });
  put(json, "achieved_gb_s", gb_s);
  put(json, "read_bandwidth_gb_s", Measured<double>(setting.bandwidth.gb_s));
  put(json, "read_bandwidth_share",
      gb_s.map([&](double value) { return value / setting.bandwidth.gb_s; }));
  // The rate of a step that fits is the cache's, and may exceed the memory's.
  Measured<bool> fits = setting.cache_bytes.map([](uint64_t) { return false; });
  if (fits && !bytes) fits = bytes.missing();
  if (fits) {
    fits = bytes->total() * result.spec.batch < static_cast<double>(*setting.cache_bytes);
  }
  put(json, "step_fits_cache", fits);
}

void put_device_work(Json& json, const TestResult& result, const RunSetting& setting) {
  const auto tokens = static_cast<double>(result.total_tokens());
  const bool is_decode = result.spec.kind == TestSpec::Kind::kDecode;
  const NotAvailable on_cpu{"the test ran on the CPU, which launches nothing and copies nothing"};
  const auto per_token = [&](uint64_t count) -> Measured<double> {
    if (!setting.on_gpu) return on_cpu;
    return static_cast<double>(count) / tokens;
  };
  const auto of_step = [&](size_t count, const char* missing) -> Measured<double> {
    if (!setting.on_gpu) return on_cpu;
    if (!is_decode) return NotAvailable{"launches are counted in decode steps only"};
    if (count == 0) return NotAvailable{missing};
    return static_cast<double>(count);
  };
  put(json, "launches_per_token",
      of_step(result.launches.launches, "steps of this number of sequences are not captured")
          .map([&](double n) { return n / result.spec.batch; }));
  put(json, "graph_nodes", of_step(result.launches.graph_nodes, "no CUDA Graph was used"));
  put(json, "synchronising_calls_per_token", per_token(result.host_work.synchronisations));
  put(json, "polling_calls_per_token", per_token(result.host_work.polls));
  put(json, "copied_to_device_bytes_per_token", per_token(result.host_work.to_device_bytes));
  put(json, "copied_to_host_bytes_per_token", per_token(result.host_work.to_host_bytes));
}

Json memory_json(const Backend& backend) {
  const MemoryPlan memory = backend.memory();
  return {{"weights", memory.weights},
          {"head_copy", memory.certified_head},
          {"kv_cache", memory.kv_cache},
          {"workspace", memory.workspace},
          {"total", memory.total()}};
}

// The GPU as CUDA and NVML describe it. Without one every field is null.
Json gpu_json(const Measured<GpuInfo>& gpu, const Measured<std::shared_ptr<NvmlDevice>>& sensors) {
  Json json = Json::object();
  put(json, "name", gpu.map([](const GpuInfo& g) { return g.name; }));
  put(json, "compute_capability", gpu.map([](const GpuInfo& g) {
    return std::to_string(g.compute_major) + "." + std::to_string(g.compute_minor);
  }));
  put(json, "multiprocessors", gpu.map([](const GpuInfo& g) { return g.multiprocessors; }));
  put(json, "vram_bytes", gpu.map([](const GpuInfo& g) { return g.total_bytes; }));
  put(json, "l2_bytes", gpu.map([](const GpuInfo& g) { return g.l2_bytes; }));
  put(json, "pci_bus_id", gpu.map([](const GpuInfo& g) { return g.pci_bus_id; }));

  const auto ask = [&]<class T>(Measured<T> (NvmlDevice::*question)() const) -> Measured<T> {
    if (!sensors) return sensors.missing();
    return ((**sensors).*question)();
  };
  put(json, "driver", ask(&NvmlDevice::driver_version));
  put(json, "power_limit_w", ask(&NvmlDevice::power_limit_w));
  put(json, "persistence_mode", ask(&NvmlDevice::persistence_mode));
  const auto put_link = [&](const std::string& name, const Measured<PcieLink>& link) {
    put(json, name + "_generation", link.map([](const PcieLink& l) { return l.generation; }));
    put(json, name + "_width", link.map([](const PcieLink& l) { return l.width; }));
  };
  put_link("pcie_link", ask(&NvmlDevice::pcie_link));
  put_link("pcie_link_max", ask(&NvmlDevice::pcie_link_max));
  return json;
}

}  // namespace

Json model_json(const ModelFile& model, const std::string& name) {
  const ModelConfig& config = model.config();
  return {{"name", name},
          {"id", hex64(model.id())},
          {"architecture", config.architecture},
          {"quantisation", "ternary, 2 bits a weight"},
          {"params", model.parameter_count()},
          {"bytes", model.file_bytes()},
          {"random", model.provenance().random},
          {"layers", config.layers},
          {"dim", config.dim},
          {"ffn", config.ffn},
          {"vocab", config.vocab},
          {"max_context", config.max_context}};
}

Json run_json(const Backend& backend, const RunSetting& setting) {
  return {
      {"model", model_json(backend.model(), setting.model_name)},
      {"backend", setting.on_gpu ? "CUDA" : "CPU"},
      {"device", setting.devices.size() > 1 ? join(setting.devices, " + ") : backend.info().device},
      {"devices", std::max<size_t>(setting.devices.size(), 1)},
      {"gpu", gpu_json(setting.gpu, setting.sensors)},
      {"threads", setting.threads},
      {"kv_type", to_string(setting.kv_type)},
      {"prefill_chunk", setting.prefill_chunk},
      {"sampling", to_json(setting.sampling)},
      {"context", backend.info().context},
      {"load_ns", setting.load_ns},
      {"read_bandwidth", to_json(setting.bandwidth)}};
}

Json test_json(const TestResult& result, const Backend& backend, const RunSetting& setting) {
  const TestSpec& spec = result.spec;
  const bool is_decode = spec.kind == TestSpec::Kind::kDecode;
  const std::vector<double> rates = result.tokens_per_second();
  const Summary rate = summarise(rates);
  const Summary time =
      summarise(std::vector<double>(result.samples_ns.begin(), result.samples_ns.end()));
  const auto tokens = static_cast<double>(result.total_tokens());

  Json json = {{"test", spec.name()},
               {"n_prompt", is_decode ? 0 : spec.tokens},
               {"n_gen", is_decode ? spec.tokens : 0},
               {"n_depth", spec.depth},
               {"n_batch", spec.batch},
               {"repeats", result.samples_ns.size()},
               {"avg_ns", time.mean},
               {"stddev_ns", time.stddev},
               {"avg_ts", rate.mean},
               {"stddev_ts", rate.stddev},
               {"median_ts", rate.median},
               {"min_ts", rate.min},
               {"max_ts", rate.max}};
  json["ttft"] = latency_json(summarise_latencies(result.ttft_ns));
  json["itl"] = latency_json(inter_token_latency(result));
  put_bandwidth(json, result, backend, setting, rate.median);
  put_device_work(json, result, setting);
  json["cpu_ns_per_token"] = static_cast<double>(result.cpu_ns) / tokens;
  json["process_threads"] = result.usage.threads;
  put(json, "host_resident_bytes", result.usage.resident_bytes);
  put(json, "host_peak_bytes", result.usage.peak_resident_bytes);
  json["memory_plan"] = memory_json(backend);
  json["head"] = {
      {"certified_steps", result.head.steps},
      {"rescored_rows_per_step", result.head.steps > 0 ? static_cast<double>(result.head.rescored) /
                                                             static_cast<double>(result.head.steps)
                                                       : 0.0}};
  json["gpu"] = to_json(result.gpu);
  json["samples_ns"] = result.samples_ns;
  json["samples_ts"] = rates;
  json["gaps_ns"] = result.inter_token_ns;
  return json;
}

Json degradation_json(const std::vector<TestResult>& results) {
  struct Depths {
    std::vector<double> depth;
    std::vector<double> ns_per_token;
    std::vector<double> tokens_per_s;
  };
  std::map<std::pair<int, int>, Depths> series;  // by tokens and batch
  for (const TestResult& result : results) {
    if (result.spec.kind != TestSpec::Kind::kDecode) continue;
    Depths& depths = series[{result.spec.tokens, result.spec.batch}];
    const double rate = summarise(result.tokens_per_second()).median;
    depths.depth.push_back(result.spec.depth);
    depths.ns_per_token.push_back(1e9 / rate);
    depths.tokens_per_s.push_back(rate);
  }
  Json json = Json::array();
  for (const auto& [key, depths] : series) {
    const NotAvailable one_depth{"a slope needs two depths; use -d 0,1024 or more"};
    // An init-capture, because clang 14 cannot capture a structured binding.
    const auto slope = [&, &depths = depths](const std::vector<double>& y) -> Measured<double> {
      const auto line = fit_line(depths.depth, y);
      if (!line) return one_depth;
      return 1024 * line->slope;
    };
    Json entry = {{"n_gen", key.first}, {"n_batch", key.second}, {"depths", depths.depth}};
    put(entry, "ns_per_token_per_1k", slope(depths.ns_per_token));
    put(entry, "tokens_per_s_per_1k", slope(depths.tokens_per_s));
    json.push_back(entry);
  }
  return json;
}

std::vector<std::pair<std::string, Json>> flat_fields(const Json& object) {
  std::vector<std::pair<std::string, Json>> fields;
  for (const auto& [name, value] : object.items()) {
    if (name == "not_available" || value.is_array()) continue;
    if (!value.is_object()) {
      fields.emplace_back(name, value);
      continue;
    }
    for (const auto& [inner, inner_value] : flat_fields(value)) {
      fields.emplace_back(name + "_" + inner, inner_value);
    }
  }
  return fields;
}

std::string table_cell(const Json& value, double unit, int decimals) {
  return value.is_null() ? "n/a" : fixed(value.get<double>() / unit, decimals);
}

}  // namespace edgellm::bench
