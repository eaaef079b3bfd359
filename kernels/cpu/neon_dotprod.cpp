// NEON with dot products of bytes (Cortex-A76, Neoverse N1, Apple M1). Compiled with those
// instructions switched on, so nothing here may be shared with other files: everything but the
// table at the end has internal linkage.
#include <arm_neon.h>

#include "kernels/cpu/fetch_ahead.h"
#include "kernels/cpu/head_codes.h"
#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {
namespace {

#include "kernels/cpu/neon_lanes.inc"

// Sums of products.
#include "kernels/cpu/neon_dotprod.inc"
#include "kernels/cpu/ternary.inc"

// Certified head.
#include "kernels/cpu/head_products.inc"

// The rest is written over floats alone.
#include "kernels/cpu/simd.inc"

// Attention over codes.
#include "kernels/cpu/neon_attention.inc"

// The rest is written over those products.
#include "kernels/cpu/integer.inc"

// Products of rows in groups.
#include "kernels/cpu/groups.inc"

// ---- Several rows ---------------------------------------------------------------------------
//
// Lane r of a sum is of row r: sdot takes four columns of four rows of the weights and one word of
// an activation row.

constexpr int kFewWideTokens = 1;

// Words of four bytes: [word][half of the rows].
inline void interleave_rows(const I (&rows)[kWideRows], uint8x16_t (&to)[kWideVectors]) {
  const auto transpose_words = [](uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d,
                                  uint8x16_t* words) {
    F4 v[4] = {vreinterpretq_f32_u8(a), vreinterpretq_f32_u8(b), vreinterpretq_f32_u8(c),
               vreinterpretq_f32_u8(d)};
    transpose(v[0], v[1], v[2], v[3]);
    for (int word = 0; word < 4; ++word) words[2 * word] = vreinterpretq_u8_f32(v[word]);
  };
  for (int half = 0; half < 2; ++half) {
    const I* r = rows + 4 * half;
    transpose_words(r[0].low, r[1].low, r[2].low, r[3].low, to + half);
    transpose_words(r[0].high, r[1].high, r[2].high, r[3].high, to + 8 + half);
  }
}

// Sums of an activation row are [half of the rows].
template <int T>
inline void multiply_interleaved(const uint8x16_t (&u)[kWideVectors],
                                 const int8_t* const (&planes)[T], Sum (&sums)[2 * T]) {
  for (int part = 0; part < 2; ++part) {
    int8x16_t a[T];
    for (int t = 0; t < T; ++t) a[t] = vld1q_s8(planes[t] + 16 * part);
    const auto multiply_word = [&](auto word) {
      constexpr int kWord = decltype(word)::value;
      for (int half = 0; half < 2; ++half) {
        const int8x16_t w = vreinterpretq_s8_u8(u[8 * part + 2 * kWord + half]);
        for (int t = 0; t < T; ++t) {
          sums[2 * t + half] = vdotq_laneq_s32(sums[2 * t + half], w, a[t], kWord);
        }
      }
    };
    multiply_word(Count<0>());
    multiply_word(Count<1>());
    multiply_word(Count<2>());
    multiply_word(Count<3>());
  }
}

inline I4 rows_of_sums(const Sum* sums, int t, int half) { return sums[2 * t + half]; }

#include "kernels/cpu/neon_wide.inc"

}  // namespace

const Primitives kNeonDotprod = {
    "neon_dotprod", kPlaneBytes, quantise,           ternary_rows, code_groups,
    group_rows,     rms_norm,    dense_rows,         largest,      powers,
    row_amax,       code_row,    certified_products, gate,         add_rows,
    attention,      turn_row,    code_digits,        code_query,   integer_attention,
    merge_states};

}  // namespace edgellm::cpu
