// How the ids of a sequence are chosen, as users say it, and as the ops take it (ChoiceRule).
//
// The choice is a pure function of logits, options, the sequence's own ids and the position, with
// sums in integers. So a seed gives the same text on every device, for any number of threads and
// beside any other request.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace edgellm {

// The steps come in this order, each on what the step before it has left:
//   1. logit_bias: added to the logits of its ids;
//   2. repeat_penalty: the logit of every id that stands in the prompt or the answer, once or
//      often, is divided by it where positive, else multiplied by it;
//   3. frequency_penalty times how often an id stands in the answer, and presence_penalty where it
//      stands there at all, are subtracted from its logit;
//   4. temperature: w = exp((logit - largest logit) / temperature);
//   5. top_k: the k largest stay;
//   6. top_p: the largest stay, as few as hold at least top_p of the weight left by top_k;
//   7. min_p: those with at least min_p of the largest weight stay;
//   8. one of those left is drawn with probability proportional to w.
// Where logits are equal the lower id counts as the larger one. Steps 2 and 4 to 8 are those of
// Hugging Face transformers, except that its top_k keeps every id that ties with the k-th; steps 1
// and 3 those of OpenAI's API.
struct SamplingOptions {
  double temperature = 0;             // >= 0; 0: the arg-max after step 3, the others do nothing
  int top_k = 0;                      // >= 0; 0: off
  double top_p = 1;                   // in (0, 1]; 1: off
  double min_p = 0;                   // in [0, 1]; 0: off
  double repeat_penalty = 1;          // in [0.01, 100]; 1: off
  double frequency_penalty = 0;       // in [-100, 100]; 0: off
  double presence_penalty = 0;        // in [-100, 100]; 0: off
  std::vector<LogitBias> logit_bias;  // finite; in ascending order of ids, each once
  uint64_t seed = 0;

  bool has_penalty() const {
    return repeat_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0;
  }
  // The choice is the arg-max of the logits as they are.
  bool is_argmax() const { return temperature == 0 && !has_penalty() && logit_bias.empty(); }
};

// The first value that is out of its range and what to use instead; empty where all are in range.
std::string sampling_problem(const SamplingOptions& options);

// The rule for valid options. `bans`: the sequence has banned ids.
ChoiceRule choice_rule(const SamplingOptions& options, bool bans);

// Whether the certified head can serve such choices: an arg-max, or among few ids of `vocab`.
bool keeps_few_ids(const SamplingOptions& options, int vocab);

// ---- Log-probabilities ------------------------------------------------------------------------

// ln of the probability that the softmax of `logits` gives to `id`, in double precision.
double log_probability(std::span<const float> logits, int32_t id);

struct TokenLogprob {
  int32_t id;
  double logprob;
};

// An id and the most probable ones in its place, as the model gave them: before penalty,
// temperature and filters, banned ids included.
struct TokenLogprobs {
  double logprob = 0;
  std::vector<TokenLogprob> top;  // most probable first, equal ones by ascending id
};

// What the op (LogprobArgs) has found of a row, as log-probabilities.
TokenLogprobs token_logprobs(const LogprobSums& sums, std::span<const LogprobLogit> top);

// The same of a row of logits on the host, bit by bit: of `id`, and of the n_top largest logits.
TokenLogprobs token_logprobs(std::span<const float> logits, int32_t id, int n_top);

}  // namespace edgellm
