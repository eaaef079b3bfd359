// Attention in integers, the KV types i16 and i8 (docs/numerics.md, "Attention in integers"): what
// one score, one weight and one row are, one source for host and device.
//
// Keys, values and queries are codes of Hadamard-turned rows: queries int16, keys and values int16
// or int8, as the type says. Weights are 16-bit numbers.
// Every sum over dimensions or positions is an exact int32, so its order is free. What is left in
// float32 follows one order: the sum of the weights (kWeightPartials) and the merge of chunks.
//
// SIMD files repeat these operations lane by lane, for the reason that canonical.h gives.
#pragma once

#include "kernels/canonical.h"
#include "kernels/integer_sizes.h"

namespace edgellm {

// The largest code of 16 bits, 127 * 256 + 127: both digits reach +-127. Queries have such codes
// for both types of keys and values.
inline constexpr float kMaxQueryCode = 32639.0f;
EDGELLM_HOST_DEVICE constexpr float max_code(KvType type) {
  return type == KvType::kI8 ? 127.0f : 32639.0f;
}

// A head is turned in blocks of this many dimensions: the largest power of two that divides it.
EDGELLM_HOST_DEVICE constexpr int turn_block(int head_dim) { return head_dim & -head_dim; }

// The Walsh-Hadamard butterfly of every block of `row` [head_dim], in place and not normalised: a
// second turn gives turn_block() times the row.
EDGELLM_HOST_DEVICE inline void turn(float* row, int head_dim) {
  const int block = turn_block(head_dim);
  for (int width = 1; width < block; width *= 2) {
    for (int begin = 0; begin < head_dim; begin += 2 * width) {
      for (int i = begin; i < begin + width; ++i) {
        const float a = row[i];
        const float b = row[i + width];
        row[i] = a + b;
        row[i + width] = a - b;
      }
    }
  }
}

// code = 256 high + low, high in [-127, 127], low in [-128, 127].
struct Digits {
  int high;
  int low;
};
EDGELLM_HOST_DEVICE inline Digits digits_of(int code) {
  const int high = (code + 128) >> 8;
  return {high, code - 256 * high};
}

// How a turned row x becomes codes: code = rint(x * per_unit), so that x is about code / per_unit.
// A row whose largest magnitude is not finite has codes 0.
struct CodeUnit {
  float per_unit;
  float unit;  // of a query or a key the unit itself, of a value its logarithm to the base 2
};

// Of a query or a key, or of a value (`is_value`). The unit of a value is a power of 2^(1/8), so
// that its logarithm is exact and can be added to a score: weights are then those of the codes.
EDGELLM_HOST_DEVICE inline CodeUnit code_unit(float amax, float max_code, bool is_value) {
  constexpr float kEighths[8] = {1.0f,          1.0905077457f, 1.1892070770f, 1.2968395948f,
                                 1.4142135382f, 1.5422108173f, 1.6817928553f, 1.8340080976f};
  const float largest = fmaxf(amax, 1e-30f);
  const float unit = largest / max_code;
  const float needed = fmaxf(unit, 9.094947017729282e-13f);  // 2^-40
  const uint32_t bits = float_to_bits(needed);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const float mantissa = bits_to_float((bits & 0x7fffffu) | 0x3f800000u);
  int eighth = 8;
  float power = 2.0f;
  for (int i = 7; i >= 0; --i) {  // unrolled by the compiler: no table in a GPU's local memory
    if (kEighths[i] < mantissa) break;
    eighth = i;
    power = kEighths[i];
  }
  power *= bits_to_float(static_cast<uint32_t>(exponent + 127) << 23);
  // One division for both: a GPU's code is short.
  const float per_unit = (is_value ? 1.0f : max_code) / (is_value ? power : largest);
  return {per_unit,
          is_value ? static_cast<float>(exponent) + 0.125f * static_cast<float>(eighth) : unit};
}

// What the cache keeps of a key and a value beside their codes.
struct CachedUnits {
  float key_unit;
  float value_log2_unit;
  float value_per_unit;  // finite, as are the others: a weight of 0 must stay 0
};

// The factor of a query's scores: log2(e) / sqrt(head_dim) / turn_block, times its unit. Sums over
// int16 keys count in units of 256 codes.
inline float head_scale(int head_dim) {
  const double log2_e = 1.4426950408889634;
  return static_cast<float>(log2_e / std::sqrt(static_cast<double>(head_dim))) /
         static_cast<float>(turn_block(head_dim));
}
EDGELLM_HOST_DEVICE inline float score_factor(float query_unit, float scale_of_head, KvType type) {
  return (query_unit * scale_of_head) * (type == KvType::kI16 ? 256.0f : 1.0f);
}

// The score of a position in powers of two, the unit of its value included. `sum` is
//   i16: 256 * sum(qh kh) + sum(qh kl + ql kh),  in units of 256 codes: ql kl is left out by
//        definition
//   i8:  256 * sum(qh k) + sum(ql k),  exact
EDGELLM_HOST_DEVICE inline float integer_score(int32_t sum, const CachedUnits& units,
                                               float factor) {
  return fmaf(static_cast<float>(sum) * units.key_unit, factor, units.value_log2_unit);
}

// The weight 2^(score - max) for an integer max >= score, +0 for score - max <= -127.
// u in [0, 127/128] holds score - max + 127 over 128; t rounds it; 2^r by a polynomial whose
// constant term is 1; the integer part goes into the exponent.
EDGELLM_HOST_DEVICE inline float integer_weight(float score, float max) {
  const float shift = (127.0f - max) * 0.0078125f;
#ifdef __CUDA_ARCH__
  const float u = __saturatef(fmaf(score, 0.0078125f, shift));  // one instruction
#else
  const float u = fmaxf(fmaf(score, 0.0078125f, shift), 0.0f);
#endif
  const float t = fmaf(u, 128.0f, 12582785.0f);
  const float n = t - 12582785.0f;
  const float r = fmaf(u, 128.0f, -n);
  float p = 0.05500895157456398f;
  p = fmaf(p, r, 0.2422110140323639f);
  p = fmaf(p, r, 0.6932829022407532f);
  p = fmaf(p, r, 1.0f);
  return bits_to_float(float_to_bits(p) + (float_to_bits(t) << 23));
}

// Bits whose lower 16 are the 16-bit number of a weight of at most 1.
EDGELLM_HOST_DEVICE inline uint32_t weight_bits(float weight) {
  return float_to_bits(fmaf(weight, 65535.0f, 8388608.0f));
}
EDGELLM_HOST_DEVICE inline uint32_t weight_code(float weight) {
  return weight_bits(weight) & 0xffffu;
}

// 2^n for an integer n <= 0, 2^-126 for those below.
EDGELLM_HOST_DEVICE inline float power_of_two(float n) {
  return bits_to_float(static_cast<uint32_t>(static_cast<int>(fmaxf(n, -126.0f)) + 127) << 23);
}

// What turns a merged sum of weighted codes into a turned value: weights of 65,535, the second
// turn, and the 256 codes that a unit of the sums of int16 values is.
EDGELLM_HOST_DEVICE inline float output_factor(float weight_sum, int head_dim, KvType type) {
  constexpr float kI16Unit = 256.0f / 65535.0f;
  constexpr float kI8Unit = 1.0f / 65535.0f;
  return (type == KvType::kI16 ? kI16Unit : kI8Unit) /
         (weight_sum * static_cast<float>(turn_block(head_dim)));
}

}  // namespace edgellm
