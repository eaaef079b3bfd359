// NEON without an instruction for dot products (Cortex-A53, Cortex-A72): products of bytes go to
// sums of 16 bits. Every 64-bit ARM processor runs it.
#include <arm_neon.h>

#include "kernels/cpu/fetch_ahead.h"
#include "kernels/cpu/head_codes.h"
#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {
namespace {

#include "kernels/cpu/neon_lanes.inc"

// ---- Ternary product ------------------------------------------------------------------------

constexpr int kTileTokens = 2;

// sums += the products of both halves of u and of 16 bytes.
inline __attribute__((always_inline)) int16x8_t multiply_bytes(int16x8_t sums, uint8x16_t u,
                                                               const int8_t* bytes) {
  const int8x16_t w = vreinterpretq_s8_u8(u);
  const int8x16_t a = vld1q_s8(bytes);
  sums = vmlal_s8(sums, vget_low_s8(w), vget_low_s8(a));
  return vmlal_high_s8(sums, w, a);
}

// A step adds at most 4 * 4 * 2 * 128 = 4096 to a 16-bit sum: 7 steps fit.
constexpr int kStepsPerFlush = 7;

template <int T>
struct ProductSum {
  // A single activation row leaves few independent chains of smlal: split each.
  static constexpr int kChains = T == 1 ? 2 : 1;
  int16x8_t pairs[kChains];
  Sum total;

  static void split(I packed, I (&u)[4]) { split_fields(packed, u); }
  void clear() {
    for (int16x8_t& chain : pairs) chain = vdupq_n_s16(0);
    total = zero_sum();
  }
  inline __attribute__((always_inline)) void add(const I (&u)[4], const int8_t* planes) {
    for (int k = 0; k < 4; ++k, planes += kPlaneBytes) {
      pairs[0] = multiply_bytes(pairs[0], u[k].low, planes);
      pairs[kChains - 1] = multiply_bytes(pairs[kChains - 1], u[k].high, planes + 16);
    }
  }
  void flush() {
    for (int16x8_t& chain : pairs) {
      total = vpadalq_s16(total, chain);
      chain = vdupq_n_s16(0);
    }
  }
  Sum lanes() const { return total; }
};

#include "kernels/cpu/ternary.inc"

// 16-bit lanes: at most 4 * 63 * 128 = 32,256.
inline Sum multiply_head_block(Sum sums, const I (&u)[2], const int8_t* digits) {
  for (int k = 0; k < 2; ++k, digits += kPlaneBytes) {
    int16x8_t pairs = multiply_bytes(vdupq_n_s16(0), u[k].low, digits);
    pairs = multiply_bytes(pairs, u[k].high, digits + 16);
    sums = vpadalq_s16(sums, pairs);
  }
  return sums;
}

// Certified head.
#include "kernels/cpu/head_products.inc"

// The rest is written over floats alone.
#include "kernels/cpu/simd.inc"

// ---- Attention over codes: pairs of int16 -----------------------------------------------------

constexpr int kWordLanes = 8;
struct W {
  int32x4_t low;
  int32x4_t high;
};
struct Pairs {
  int16x8_t first;
  int16x8_t second;
};
inline W load_words(const void* p) {
  const auto* words = static_cast<const int32_t*>(p);
  return {vld1q_s32(words), vld1q_s32(words + 4)};
}
inline void store_words(int32_t* p, W v) {
  vst1q_s32(p, v.low);
  vst1q_s32(p + 4, v.high);
}
inline W broadcast_word(int32_t word) { return {vdupq_n_s32(word), vdupq_n_s32(word)}; }
inline Pairs broadcast_pair(int32_t pair) {
  return {vdupq_n_s16(static_cast<int16_t>(pair)), vdupq_n_s16(static_cast<int16_t>(pair >> 16))};
}
inline __attribute__((always_inline)) W multiply_pairs(W acc, Pairs a, Pairs b) {
  const auto multiply = [&](int16x8_t x, int16x8_t y) {
    acc.low = vmlal_s16(acc.low, vget_low_s16(x), vget_low_s16(y));
    acc.high = vmlal_high_s16(acc.high, x, y);
  };
  multiply(a.first, b.first);
  multiply(a.second, b.second);
  return acc;
}
// The halves of each word.
inline Pairs halves(W v) {
  const int16x8_t low = vreinterpretq_s16_s32(v.low);
  const int16x8_t high = vreinterpretq_s16_s32(v.high);
  return {vuzp1q_s16(low, high), vuzp2q_s16(low, high)};
}
template <class Operation>
inline Pairs of_halves(W v, Operation operation) {
  const Pairs both = halves(v);
  return {operation(both.first), operation(both.second)};
}
inline Pairs even_bytes(W v) {
  return of_halves(v, [](int16x8_t half) { return vandq_s16(half, vdupq_n_s16(0xff)); });
}
inline Pairs odd_bytes(W v) {
  return of_halves(v, [](int16x8_t half) {
    return vreinterpretq_s16_u16(vshrq_n_u16(vreinterpretq_u16_s16(half), 8));
  });
}
inline Pairs even_digits(W v) {
  return of_halves(v, [](int16x8_t half) { return vshrq_n_s16(vshlq_n_s16(half, 8), 8); });
}
inline Pairs odd_digits(W v) {
  return of_halves(v, [](int16x8_t half) { return vshrq_n_s16(half, 8); });
}
inline Pairs add_pairs(Pairs a, Pairs b) {
  return {vaddq_s16(a.first, b.first), vaddq_s16(a.second, b.second)};
}
inline void pair_positions(const int32_t* bits, int32_t* codes, int32_t* high) {
  // The lower halves of each word and of that two behind it.
  const auto pair = [](int32x4_t v) { return vsliq_n_s32(v, vextq_s32(v, v, 2), 16); };
  for (int g = 0; g < 8; g += 4) {
    const int32x4_t words = vld1q_s32(bits + g);
    vst1q_s32(codes + g, pair(veorq_s32(words, vdupq_n_s32(0x8000))));
    vst1q_s32(high + g, pair(vshrq_n_s32(words, 8)));
  }
}

#include "kernels/cpu/integer_pairs.inc"

// The rest is written over those products.
#include "kernels/cpu/integer.inc"

// ---- Groups ---------------------------------------------------------------------------------

// 16-bit sums: at most 4 * 4 * 2 * 128.
inline int16x8_t plane_sums(const I (&u)[4], const int8_t* planes) {
  int16x8_t sums = vdupq_n_s16(0);
  for (int k = 0; k < 4; ++k, planes += kPlaneBytes) {
    sums = multiply_bytes(sums, u[k].low, planes);
    sums = multiply_bytes(sums, u[k].high, planes + 16);
  }
  return sums;
}
inline Sum group_products(const I (&u)[4], const int8_t* high, const int8_t* low) {
  const Sum high_sum = vpaddlq_s16(plane_sums(u, high));
  return vpadalq_s16(vshlq_n_s32(high_sum, 8), plane_sums(u, low));
}

#include "kernels/cpu/groups.inc"

}  // namespace

const Primitives kNeon = {
    "neon",      kPlaneBytes, quantise,           ternary_tiles, code_groups,
    group_tiles, rms_norm,    dense_rows,         largest,       powers,
    row_amax,    code_row,    certified_products, gate,          add_rows,
    attention,   turn_row,    code_digits,        code_query,    integer_attention,
    merge_states};

}  // namespace edgellm::cpu
