// What `edgellm compare` found: both sides, every answer of them, and the verdict.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/common/statistics.h"
#include "apps/compare/clients/peer.h"
#include "apps/compare/sample.h"
#include "apps/session/machine.h"

namespace edgellm::compare {

struct OurInfo {
  std::string version;  // with the revision
  std::string path;
  std::string id;
  std::string architecture;
  uint64_t parameters = 0;
  uint64_t bytes = 0;
  int context = 0;
  std::string device;
  std::string kv_type;
  MemoryPlan memory;
};

// Whether both sides ran the same weights, and how that is known.
struct SameWeights {
  bool same = false;
  std::string reason;
};
// `stated`: the user says so. What the server tells of itself can only speak against it.
SameWeights decide_same_weights(bool stated, uint64_t our_parameters,
                                const peers::PeerInfo& theirs);

// One prompt, answered by both.
struct Pair {
  std::string nonce;
  bool ours_first = true;
  Sample ours;
  Sample theirs;
};

struct Comparison {
  OurInfo ours;
  peers::PeerInfo theirs;
  SameWeights same_weights;
  bool theirs_is_local = true;
  Machine machine;
  std::string prompt_source;
  std::string prompt;  // without its nonce
  int max_tokens = 0;
  int warmups = 0;
  std::vector<Sample> theirs_warmups;
  std::vector<Pair> pairs;
};

// A line of the verdict. Ratios above 1 are in our favour, whichever way the metric runs.
struct VerdictRow {
  std::string metric;
  std::string unit;  // "tok/s", "ms", "bytes"
  bool more_is_better = true;
  Measured<double> ours;  // median over the pairs
  Measured<double> theirs;
  Measured<Summary> ratio;  // over the pairs; of one value where there are no pairs of it
};
std::vector<VerdictRow> verdict(const Comparison& comparison);

// Times between the pieces of all measured answers of a side.
LatencySummary pooled_latencies(const Comparison& comparison, Sample Pair::*side);

// What a reader has to know besides the numbers, each a sentence.
std::vector<std::string> remarks(const Comparison& comparison);

// "1.43x (1.40 to 1.45)", or "n/a".
std::string ratio_text(const VerdictRow& row);
std::string value_text(const Measured<double>& value, const std::string& unit);

// Name and value of everything that describes a side; `n/a (reason)` where it is not known.
std::vector<std::pair<std::string, std::string>> facts(const OurInfo& ours);
std::vector<std::pair<std::string, std::string>> facts(const peers::PeerInfo& theirs);

// Tables; the first row of the last two holds the titles of the columns.
// "metric, edgellm, server": the figures that each side's own clock gives.
std::vector<std::vector<std::string>> own_figures(const Comparison& comparison);
// The inter-token latencies of either side, with percentiles.
std::vector<std::vector<std::string>> latency_table(const Comparison& comparison);
std::vector<std::vector<std::string>> verdict_table(const Comparison& comparison);

std::string to_text(const Comparison& comparison);
nlohmann::ordered_json to_json(const Comparison& comparison);  // edgellm.compare/1, docs/compare.md
std::string to_html(const Comparison& comparison);

}  // namespace edgellm::compare
