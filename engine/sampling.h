// Choosing the next id from logits, on the host for every device.
//
// Everything is a pure function of its arguments: + - * /, comparisons and canonical_exp in a fixed
// order, and a random number that depends on the seed and the id's position alone. So a seed gives
// the same text on every device, for any number of threads and beside any other request.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace edgellm {

// How an id is chosen. The steps come in this order, each on what the step before it has left:
//   1. repeat_penalty: the logit of every id seen before (prompt and answer, once each, however
//      often it stands there) is divided by it where positive, else multiplied by it;
//   2. temperature: w = exp((logit - largest logit) / temperature);
//   3. top_k: the k largest stay;
//   4. top_p: the largest stay, as few as hold at least top_p of the weight left by top_k;
//   5. min_p: those with at least min_p of the largest weight stay;
//   6. one of those left is drawn with probability proportional to w.
// Where logits are equal the lower id counts as the larger one. These are the definitions of
// Hugging Face transformers, except that its top_k keeps every id that ties with the k-th.
struct SamplingOptions {
  double temperature = 0;     // >= 0; 0: the arg-max after step 1, the others do nothing
  int top_k = 0;              // >= 0; 0: off
  double top_p = 1;           // in (0, 1]; 1: off
  double min_p = 0;           // in [0, 1]; 0: off
  double repeat_penalty = 1;  // in [0.01, 100]; 1: off
  uint64_t seed = 0;

  // The choice is the arg-max of the logits as they are: no logits are needed on the host.
  bool is_argmax() const { return temperature == 0 && repeat_penalty == 1; }
};

// The first value that is out of its range and what to use instead; empty where all are in range.
std::string sampling_problem(const SamplingOptions& options);

// In [0, 1), 53 bits: output number `position` of the SplitMix64 generator whose state begins at
// mix(seed), mix being SplitMix64's own finaliser.
double sampling_uniform(uint64_t seed, uint64_t position);

// The id that `options`, which must be valid, choose for `position`, its place in the sequence (the
// prompt's first id is at 0).
//   logits [vocab]  -inf excludes an id; NaN and +inf are Error (kRuntime)
//   seen            ids within the vocabulary, in any order, repeated or not
//   banned          ids that are never chosen
// -1 where every id is excluded.
int32_t choose_id(std::span<const float> logits, std::span<const int32_t> seen,
                  std::span<const int32_t> banned, const SamplingOptions& options,
                  uint64_t position);

// ln of the probability that the softmax of `logits` gives to `id`. For reading, not for choosing:
// in double precision with the C library's exp and log.
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
TokenLogprobs log_probabilities(std::span<const float> logits, int32_t id, int n_top);

}  // namespace edgellm
