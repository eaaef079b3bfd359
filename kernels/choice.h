// The arithmetic of choosing an id from logits (ChooseArgs, ops.h), one source for host and device.
//
// Weights are integers, so that their sums, the thresholds of the filters and the draw are exact in
// any order (docs/numerics.md, "Sampling").
#pragma once

#include <cfloat>
#include <cstddef>

#include "kernels/canonical.h"

namespace edgellm {

// ---- Logits ---------------------------------------------------------------------------------

// The mark of an id of a sequence (ChooseArgs::marks).
inline constexpr uint32_t kMarkBanned = 0x8000;  // is never chosen
inline constexpr uint32_t kMarkBiased = 0x4000;  // has an entry in the list of biases
inline constexpr uint32_t kMarkPrompt = 0x2000;  // stands in the prompt
inline constexpr uint32_t kMarkCount = 0x1fff;   // how often it was chosen; more count as this

// The bias of an id that has one; the entries are in ascending order of ids.
EDGELLM_HOST_DEVICE inline float bias_of(const LogitBias* biases, int n, int id) {
  int begin = 0;
  for (int end = n; end - begin > 1;) {
    const int middle = (begin + end) / 2;
    if (biases[middle].id <= id) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  return biases[begin].bias;
}

// A logit after bias and penalties: finite, or -inf where the id is banned.
EDGELLM_HOST_DEVICE inline float adjusted_logit(float logit, uint32_t mark, const ChoiceRule& rule,
                                                const LogitBias* biases, int id) {
  if (mark == 0) return logit;
  if ((mark & kMarkBanned) != 0) return -INFINITY;
  if ((mark & kMarkBiased) != 0) logit = logit + bias_of(biases, rule.n_biases, id);
  if ((mark & (kMarkPrompt | kMarkCount)) != 0) {
    logit = logit > 0.0f ? logit / rule.repetition : logit * rule.repetition;
  }
  const uint32_t count = mark & kMarkCount;
  if (count != 0) logit = (logit - static_cast<float>(count) * rule.frequency) - rule.presence;
  return fminf(fmaxf(logit, -FLT_MAX), FLT_MAX);
}

// The mark of an id after it was chosen once more.
EDGELLM_HOST_DEVICE inline uint32_t counted(uint32_t mark) {
  return (mark & kMarkCount) == kMarkCount ? mark : mark + 1;
}

// Counts the id of a row, where its sequence keeps marks.
EDGELLM_HOST_DEVICE inline void count_choice(const CountArgs& args, int row) {
  const int32_t id = args.ids[row];
  const int32_t sequence = args.sequences[args.row_list[row]];
  if (id < 0 || args.rules[sequence].marks == 0 || *args.fault != 0) return;
  uint16_t& mark =
      args.marks[static_cast<ptrdiff_t>(sequence) * args.vocab + static_cast<ptrdiff_t>(id)];
  mark = static_cast<uint16_t>(counted(mark));
}

// A float's place in their order: larger for larger ones, equal for the two zeros, 0 for -inf.
EDGELLM_HOST_DEVICE inline uint32_t logit_rank(float logit) {
  const uint32_t rank = ordered_bits(logit + 0.0f);
  return logit == -INFINITY ? 0 : rank;
}

// ---- Weights --------------------------------------------------------------------------------

// The weight of the largest logit. A vocabulary has at most 2^24 ids: all sums stay below 2^63.
inline constexpr int kWeightBits = 38;
inline constexpr uint64_t kMostWeight = uint64_t{1} << kWeightBits;

// floor(p * 2^kWeightBits) for p in [0, 1].
EDGELLM_HOST_DEVICE inline uint64_t weight_of(float p) {
  const uint32_t bits = float_to_bits(p);
  const uint32_t exponent = bits >> 23;
  if (exponent <= 126 - kWeightBits) return 0;
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  return (mantissa << kWeightBits) >> (127 - exponent + 23);
}

// z of a logit: (logit - largest) times the inverse of the temperature, for a logit above -inf.
EDGELLM_HOST_DEVICE inline float weight_exponent(float logit, float largest,
                                                 float inverse_temperature) {
  // Beyond the range of floats, in place of -inf * 0.
  return fmaxf(logit - largest, -FLT_MAX) * inverse_temperature;
}

EDGELLM_HOST_DEVICE inline uint64_t logit_weight(float logit, float largest,
                                                 float inverse_temperature) {
  if (logit == -INFINITY) return 0;
  return weight_of(canonical_exp(weight_exponent(logit, largest, inverse_temperature)));
}

// floor(a * b / 2^64)
EDGELLM_HOST_DEVICE inline uint64_t share_of(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64);
#endif
}

// The sum that the ids of top_p reach: at least that share of the total, and never nothing.
EDGELLM_HOST_DEVICE inline uint64_t top_p_sum(uint64_t total, uint64_t top_p) {
  const uint64_t sum = share_of(total, top_p);
  return sum == 0 ? 1 : sum;
}

// ---- Few ids --------------------------------------------------------------------------------

// How many ids, the first ones in the order of the filters, decide the choice; 0: all of them.
EDGELLM_HOST_DEVICE inline int most_kept(const ChoiceRule& rule) {
  return rule.samples == 0 ? 1 : rule.top_k;
}

// A certified head serves rules that keep at most this many of `vocab` ids: those whose bounds
// reach the smallest of them, several times as many, are then computed one by one.
EDGELLM_HOST_DEVICE inline bool keeps_few(const ChoiceRule& rule, int vocab) {
  constexpr int kMost = 1024;
  const int kept = most_kept(rule);
  return kept > 0 && kept <= kMost && kept <= vocab / 32;
}

// Whether a least weight decides alone which ids are kept. Then a logit so far below the largest
// one that its weight is less has no say, whatever the other logits are. Below a share of 2^-10 of
// the largest weight most ids of a vocabulary may stay.
EDGELLM_HOST_DEVICE inline bool keeps_by_weight(const ChoiceRule& rule) {
  return rule.samples != 0 && rule.top_k == 0 && rule.top_p == 0 &&
         rule.min_weight >= kMostWeight >> 10;
}

// ---- Random numbers -------------------------------------------------------------------------

// SplitMix64 (Steele, Lea, Flood 2014): its finaliser, and what its state grows by.
EDGELLM_HOST_DEVICE inline uint64_t mix_bits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Output number `position` of the SplitMix64 generator whose state begins at mix_bits(seed).
EDGELLM_HOST_DEVICE inline uint64_t random_bits(uint64_t seed, uint64_t position) {
  return mix_bits(mix_bits(seed) + (position + 1) * 0x9e3779b97f4a7c15u);
}

}  // namespace edgellm
