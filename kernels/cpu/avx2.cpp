// AVX2 with FMA and F16C. Compiled with those instructions switched on, so nothing here may be
// shared with other files: everything but the table at the end has internal linkage.
#include <immintrin.h>

#include "kernels/cpu/fetch_ahead.h"
#include "kernels/cpu/head_codes.h"
#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {
namespace {

#include "kernels/cpu/avx2_lanes.inc"

// ---- Products of integers -------------------------------------------------------------------

inline W multiply_pairs(W acc, Pairs a, Pairs b) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}

constexpr int kTileTokens = 2;

inline I widen_sums(I pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// A step adds at most 4 * 2 * 2 * 128 = 2048 to a 16-bit sum: 15 steps fit.
constexpr int kStepsPerFlush = 15;

template <int T>
struct ProductSum {
  I pairs;  // 16-bit lanes
  I total;

  static void split(I packed, I (&u)[4]) { split_fields(packed, u); }
  void clear() { pairs = total = zero_bytes(); }
  inline __attribute__((always_inline)) void add(const I (&u)[4], const int8_t* planes) {
    const I* a = reinterpret_cast<const I*>(planes);
    const I p01 = _mm256_add_epi16(_mm256_maddubs_epi16(u[0], _mm256_loadu_si256(a)),
                                   _mm256_maddubs_epi16(u[1], _mm256_loadu_si256(a + 1)));
    const I p23 = _mm256_add_epi16(_mm256_maddubs_epi16(u[2], _mm256_loadu_si256(a + 2)),
                                   _mm256_maddubs_epi16(u[3], _mm256_loadu_si256(a + 3)));
    pairs = _mm256_add_epi16(pairs, _mm256_add_epi16(p01, p23));
  }
  void flush() {
    total = _mm256_add_epi32(total, widen_sums(pairs));
    pairs = zero_bytes();
  }
  I lanes() const { return total; }
};

inline I add_bytes(I sums, I bytes) {
  return _mm256_add_epi32(sums, widen_sums(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes)));
}

// 16-bit sums: a step adds at most 4 * 2 * 2 * 128.
inline I plane_sums(const I (&u)[4], const int8_t* planes) {
  const I* a = reinterpret_cast<const I*>(planes);
  return _mm256_add_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(u[0], _mm256_loadu_si256(a)),
                                           _mm256_maddubs_epi16(u[1], _mm256_loadu_si256(a + 1))),
                          _mm256_add_epi16(_mm256_maddubs_epi16(u[2], _mm256_loadu_si256(a + 2)),
                                           _mm256_maddubs_epi16(u[3], _mm256_loadu_si256(a + 3))));
}
inline I group_products(const I (&u)[4], const int8_t* high, const int8_t* low) {
  return _mm256_add_epi32(_mm256_madd_epi16(plane_sums(u, high), _mm256_set1_epi16(256)),
                          widen_sums(plane_sums(u, low)));
}

// 16-bit lanes: at most 2 * 2 * 63 * 128 = 32,256.
inline I multiply_head_block(I sums, const I (&u)[2], const int8_t* digits) {
  const I* a = reinterpret_cast<const I*>(digits);
  return _mm256_add_epi32(
      sums, widen_sums(_mm256_add_epi16(_mm256_maddubs_epi16(u[0], _mm256_loadu_si256(a)),
                                        _mm256_maddubs_epi16(u[1], _mm256_loadu_si256(a + 1)))));
}

#include "kernels/cpu/avx2_products.inc"

}  // namespace

const Primitives kAvx2 = {
    "avx2",      kPlaneBytes, quantise,           ternary_tiles, code_groups,
    group_tiles, rms_norm,    dense_rows,         largest,       powers,
    row_amax,    code_row,    certified_products, gate,          add_rows,
    attention,   turn_row,    code_digits,        code_query,    integer_attention,
    merge_states};

}  // namespace edgellm::cpu
