// What `edgellm run` tells of a run: lines for people (--verbose), an object (--json).
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "apps/common/timings.h"
#include "engine/generate.h"
#include "model/model_file.h"

namespace edgellm {

struct RunTimings {
  int64_t total_ns = 0;
  int64_t load_ns = 0;
};

// All that a run found out, for --json and --verbose.
struct RunReport {
  const ModelFile* model;
  const Backend* backend;
  const EngineOptions* options;
  const SamplingOptions* sampling;
  std::span<const int32_t> prompt_ids;
  const GenerateResult* result;
  RunTimings timings;

  int64_t prompt_count() const { return static_cast<int64_t>(prompt_ids.size()); }
  int64_t eval_count() const { return static_cast<int64_t>(result->token_ids.size()); }
  double prompt_tps() const { return per_second(prompt_count(), result->prompt_eval_ns); }
  // The first token comes out of the prompt's evaluation: the rate is of those after it.
  int64_t timed_tokens() const { return std::max<int64_t>(0, eval_count() - 1); }
  double eval_tps() const { return per_second(timed_tokens(), result->eval_ns); }
};

// On stderr. The first eight lines are Ollama's, in its words and layout, left out where they have
// nothing to say, so that the two tools can be compared line by line.
void print_verbose(const RunReport& report);

// `text` is null where the model has no tokenizer.
nlohmann::ordered_json to_json(const RunReport& report, const nlohmann::ordered_json& text);

}  // namespace edgellm
