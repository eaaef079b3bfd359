#include "apps/bench/ops/op_timing.h"

#include "apps/common/measured.h"

namespace edgellm::bench {
namespace {

nlohmann::ordered_json to_json(const Measured<OpTime>& time, double read_gb_s) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const auto field = [&](const char* name, auto&& pick) { put(json, name, time.map(pick)); };
  field("time_us", [](const OpTime& t) { return t.time_us; });
  field("weight_bytes", [](const OpTime& t) { return t.bytes.weights; });
  field("kv_bytes", [](const OpTime& t) { return t.bytes.kv; });
  field("activation_bytes", [](const OpTime& t) { return t.bytes.activations; });
  field("gb_s", [](const OpTime& t) { return t.gb_s(); });
  field("read_bandwidth_share", [&](const OpTime& t) { return t.gb_s() / read_gb_s; });
  return json;
}

}  // namespace

std::vector<PassShape> OpOptions::passes(int depth) const {
  std::vector<PassShape> all;
  for (const int n : rows) all.push_back({n, depth, false});
  for (const int n : sequences) all.push_back({n, depth, true});
  return all;
}

bool stays_in_cache(const OpBytes& bytes, int executions, uint64_t cache_bytes) {
  return (bytes.weights + bytes.kv) * static_cast<uint64_t>(executions) < cache_bytes;
}

nlohmann::ordered_json to_json(const OpResult& result, double read_gb_s) {
  const Measured<OpTime> unfused =
      result.unfused ? Measured<OpTime>(*result.unfused)
                     : Measured<OpTime>(NotAvailable{"there is no unfused chain of this op"});
  nlohmann::ordered_json json = {{"op", result.op},
                                 {"rows", result.pass.rows},
                                 {"depth", result.pass.depth},
                                 {"executions", result.executions},
                                 {"stays_in_cache", result.stays_in_cache}};
  json["fused"] = to_json(Measured<OpTime>(result.fused), read_gb_s);
  json["unfused"] = to_json(unfused, read_gb_s);
  put(json, "time_ratio",
      unfused.map([&](const OpTime& t) { return t.time_us / result.fused.time_us; }));
  put(json, "bytes_ratio", unfused.map([&](const OpTime& t) {
    return static_cast<double>(t.bytes.total()) / static_cast<double>(result.fused.bytes.total());
  }));
  return json;
}

}  // namespace edgellm::bench
