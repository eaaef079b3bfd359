// Prompt in, tokens out, for one sequence: prefill in chunks, then decode, greedy or sampled.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/backend.h"
#include "engine/sampling.h"

namespace edgellm {

enum class FinishReason {
  kStop,         // a stop id was generated (it is the last of token_ids)
  kLength,       // max_tokens reached
  kStopString,   // on_token said so
  kContext,      // the context is full
  kInterrupted,  // `interrupted` said so
};

const char* to_string(FinishReason reason);  // "stop", "length", "stop_string", ...

struct GenerateRequest {
  std::span<const int32_t> prompt_ids;  // at least one id, all within the vocabulary
  int n_cached = 0;     // the first ids, which the cache holds from an earlier run; never all
  int max_tokens = -1;  // -1: until the context is full
  std::span<const int32_t> stop_ids;
  bool ignore_stop_ids = false;  // never choose a stop id
  SamplingOptions sampling;      // greedy unless set
  // Called with the log-probabilities of each id, just before on_token: its own and those of the
  // `top_logprobs` most probable ids. It changes no id, but the full head runs for every step, and
  // the host waits for each. May be empty.
  std::function<void(const TokenLogprobs&)> on_logprobs;
  int top_logprobs = 0;  // at most the vocabulary and kMaxTopLogprobs
  // Called with each id as it comes; false ends the run with kStopString. May be empty.
  std::function<bool(int32_t id)> on_token;
  // Polled between steps; true ends the run with kInterrupted. May be empty.
  std::function<bool()> interrupted;

  std::span<const int32_t> banned() const {
    return ignore_stop_ids ? stop_ids : std::span<const int32_t>();
  }
};

struct GenerateResult {
  std::vector<int32_t> token_ids;
  FinishReason finish_reason = FinishReason::kLength;
  // How many ids the cache holds now, of the prompt and then of token_ids, whose last id was never
  // fed. A later run whose prompt begins with them can resume there (GenerateRequest::n_cached).
  int n_cached = 0;
  int64_t prompt_eval_ns = 0;           // prefill, with the first token
  int64_t eval_ns = 0;                  // all tokens after the first
  int64_t ttft_ns = 0;                  // from the call to the first token handed over
  std::vector<int64_t> inter_token_ns;  // inter-token latencies, token_ids.size() - 1 of them
};

// Throws Error: kPromptDoesNotFit when the prompt and one token exceed the context, kUsage for an
// empty prompt, an id outside the vocabulary, or a value of `sampling` or `top_logprobs` that is
// out of range.
void check_request(const Backend& backend, const GenerateRequest& request);

// Throws what check_request() throws, and Error (kUsage) where every id is a stop id and must be
// ignored.
GenerateResult generate(Backend& backend, const GenerateRequest& request);

// ---- What every run of a sequence shares ------------------------------------------------------

// When a run ends.
struct EndRules {
  std::span<const int32_t> stop_ids;
  bool ignore_stop_ids = false;
  int max_tokens = -1;
  int context = 0;
};
// The reason to end after `id`, which is generated token number `n_tokens` and belongs to
// `position` of the sequence. `wants_more` is what on_token returned. Empty where the run
// continues.
std::optional<FinishReason> reason_to_end(const EndRules& rules, int32_t id, size_t n_tokens,
                                          int position, bool wants_more);

// The error for a choice of -1.
Error every_id_is_banned();

}  // namespace edgellm
