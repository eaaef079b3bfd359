// The JSON of `edgellm compare`, schema edgellm.compare/1: docs/compare.md.
#include "apps/common/version.h"
#include "apps/compare/report.h"

namespace edgellm::compare {
namespace {

nlohmann::ordered_json to_json(const peers::ServerFigures& own) {
  auto json = nlohmann::ordered_json::object();
  put(json, "prompt_tokens", own.prompt_tokens);
  put(json, "prompt_ns", own.prompt_ns);
  put(json, "cached_tokens", own.cached_tokens);
  put(json, "eval_tokens", own.eval_tokens);
  put(json, "eval_ns", own.eval_ns);
  put(json, "load_ns", own.load_ns);
  put(json, "total_ns", own.total_ns);
  put(json, "prompt_tps", own.prompt_tps);
  put(json, "eval_tps", own.eval_tps);
  return json;
}

nlohmann::ordered_json to_json(const LatencySummary& latencies) {
  return {{"n", latencies.n},
          {"mean", latencies.mean_ns},
          {"variance_ns2", latencies.variance_ns2},
          {"p50", latencies.p50_ns},
          {"p90", latencies.p90_ns},
          {"p95", latencies.p95_ns},
          {"p99", latencies.p99_ns},
          {"max", latencies.max_ns},
          {"jitter", latencies.jitter_ns()},
          {"longest_stall", latencies.longest_stall_ns()}};
}

nlohmann::ordered_json to_json(const Sample& sample) {
  nlohmann::ordered_json json = {{"text", sample.text}, {"finish_reason", sample.finish_reason}};
  put(json, "prompt_tokens", sample.prompt_tokens);
  put(json, "tokens", sample.tokens);
  json["pieces"] = sample.pieces;
  put(json, "ttft_ns", sample.ttft_ns);
  json["total_ns"] = sample.total_ns;
  put(json, "prefill_tps", sample.prefill_tps);
  put(json, "decode_tps", sample.decode_tps);
  put(json, "text_bytes_per_s", sample.text_bytes_per_s);
  json["gaps_ns"] = sample.inter_token_ns;
  json["own_clock"] = to_json(sample.own);
  return json;
}

nlohmann::ordered_json to_json(const OurInfo& ours) {
  return {{"program", "edgellm"},
          {"version", ours.version},
          {"model", ours.path},
          {"id", ours.id},
          {"architecture", ours.architecture},
          {"parameters", ours.parameters},
          {"quantisation", "ternary"},
          {"bytes", ours.bytes},
          {"context", ours.context},
          {"kv_type", ours.kv_type},
          {"device", ours.device},
          {"memory_bytes", ours.memory.total()}};
}

nlohmann::ordered_json to_json(const peers::PeerInfo& theirs) {
  nlohmann::ordered_json json = {{"program", theirs.software}};
  put(json, "version", theirs.version);
  json["address"] = theirs.address;
  json["api"] = theirs.api;
  json["model"] = theirs.model;
  put(json, "architecture", theirs.architecture);
  put(json, "parameters", theirs.parameters);
  put(json, "quantisation", theirs.quantisation);
  put(json, "bytes", theirs.bytes);
  put(json, "context", theirs.context);
  put(json, "device", theirs.device);
  put(json, "memory_bytes", theirs.memory_bytes);
  put(json, "gpu_memory_bytes", theirs.gpu_memory_bytes);
  json["ignores_stop_tokens"] = theirs.ignores_stop_tokens;
  return json;
}

nlohmann::ordered_json to_json(const VerdictRow& row) {
  const bool time = row.unit == "ms";
  nlohmann::ordered_json json = {{"metric", row.metric},
                                 {"unit", time ? "ns" : row.unit},
                                 {"more_is_better", row.more_is_better}};
  put(json, "ours", row.ours);
  put(json, "theirs", row.theirs);
  put(json, "ratio", row.ratio.map([](const Summary& ratio) {
    return nlohmann::ordered_json{
        {"median", ratio.median}, {"min", ratio.min}, {"max", ratio.max}, {"pairs", ratio.n}};
  }));
  return json;
}

}  // namespace

nlohmann::ordered_json to_json(const Comparison& comparison) {
  auto pairs = nlohmann::ordered_json::array();
  for (const Pair& pair : comparison.pairs) {
    pairs.push_back({{"nonce", pair.nonce},
                     {"first", pair.ours_first ? "ours" : "theirs"},
                     {"ours", to_json(pair.ours)},
                     {"theirs", to_json(pair.theirs)}});
  }
  auto warmups = nlohmann::ordered_json::array();
  for (const Sample& sample : comparison.theirs_warmups) warmups.push_back(to_json(sample));
  auto rows = nlohmann::ordered_json::array();
  for (const VerdictRow& row : verdict(comparison)) rows.push_back(to_json(row));
  return {{"schema", "edgellm.compare/1"},
          {"ours", to_json(comparison.ours)},
          {"theirs", to_json(comparison.theirs)},
          {"same_weights", comparison.same_weights.same},
          {"same_weights_reason", comparison.same_weights.reason},
          {"prompt", comparison.prompt},
          {"max_tokens", comparison.max_tokens},
          {"order", "ABBA"},
          {"warmups", comparison.warmups},
          {"verdict", rows},
          {"gaps_ns",
           {{"ours", to_json(pooled_latencies(comparison, &Pair::ours))},
            {"theirs", to_json(pooled_latencies(comparison, &Pair::theirs))}}},
          {"remarks", remarks(comparison)},
          {"pairs", pairs},
          {"theirs_warmups", warmups},
          {"build", build_json()},
          {"machine", to_json(comparison.machine)}};
}

}  // namespace edgellm::compare
