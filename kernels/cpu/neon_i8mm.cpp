// NEON with dot products of bytes and products of 2 x 8 by 8 x 2 matrices of them (Neoverse V1 and
// N2, Apple M2). Compiled with those instructions switched on, so nothing here may be shared with
// other files: everything but the table at the end has internal linkage.
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
// smmla multiplies eight columns of two rows of the weights with those of two activation rows: lane
// 2 r + t of a sum is of row r with activation row t.

constexpr int kFewWideTokens = 2;

// Pieces of eight bytes: [piece][pair of rows].
inline void interleave_rows(const I (&rows)[kWideRows], uint8x16_t (&to)[kWideVectors]) {
  const auto pair_up = [&](uint8x16_t* pieces, uint8x16_t a, uint8x16_t b) {
    const uint64x2_t of_a = vreinterpretq_u64_u8(a);
    const uint64x2_t of_b = vreinterpretq_u64_u8(b);
    pieces[0] = vreinterpretq_u8_u64(vtrn1q_u64(of_a, of_b));
    pieces[kWideRows / 2] = vreinterpretq_u8_u64(vtrn2q_u64(of_a, of_b));
  };
  for (int r = 0; r < kWideRows; r += 2) {
    pair_up(to + r / 2, rows[r].low, rows[r + 1].low);
    pair_up(to + kWideRows + r / 2, rows[r].high, rows[r + 1].high);
  }
}

// Sums of two activation rows are [pair of rows].
template <int T>
inline void multiply_interleaved(const uint8x16_t (&u)[kWideVectors],
                                 const int8_t* const (&planes)[T], Sum (&sums)[2 * T]) {
  for (int piece = 0; piece < kPlaneBytes / 8; ++piece) {
    int8x16_t a[T / 2];
    for (int t = 0; t < T; t += 2) {
      a[t / 2] = vcombine_s8(vld1_s8(planes[t] + 8 * piece), vld1_s8(planes[t + 1] + 8 * piece));
    }
    for (int pair = 0; pair < kWideRows / 2; ++pair) {
      const int8x16_t w = vreinterpretq_s8_u8(u[piece * (kWideRows / 2) + pair]);
      for (int t = 0; t < T; t += 2)
        sums[2 * t + pair] = vmmlaq_s32(sums[2 * t + pair], w, a[t / 2]);
    }
  }
}

inline I4 rows_of_sums(const Sum* sums, int t, int half) {
  const Sum* of_pair = sums + 4 * (t / 2) + 2 * half;
  return t % 2 == 0 ? vuzp1q_s32(of_pair[0], of_pair[1]) : vuzp2q_s32(of_pair[0], of_pair[1]);
}

#include "kernels/cpu/neon_wide.inc"

}  // namespace

const Primitives kNeonI8mm = {
    "neon_i8mm", kPlaneBytes, quantise,           ternary_rows, code_groups,
    group_rows,  rms_norm,    dense_rows,         largest,      powers,
    row_amax,    code_row,    certified_products, gate,         add_rows,
    attention,   turn_row,    code_digits,        code_query,   integer_attention,
    merge_states};

}  // namespace edgellm::cpu
