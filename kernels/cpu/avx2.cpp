// AVX2 with FMA and F16C. Compiled with those instructions switched on, so nothing here may be
// shared with other files: everything but the table at the end has internal linkage.
#include <immintrin.h>

#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {
namespace {

using F = __m256;
constexpr int kLanes = 8;
constexpr int kAccumulators = 8;  // 64 partial sums a pass; 8 of the 16 registers are left

inline F zero() { return _mm256_setzero_ps(); }
inline F broadcast(float v) { return _mm256_set1_ps(v); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F load_first(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
inline void store(float* p, F v) { _mm256_storeu_ps(p, v); }
inline void store_first(float* p, int n, F v) { _mm256_maskstore_ps(p, first_lanes(n), v); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fmadd(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F vmax(F a, F b) { return _mm256_max_ps(a, b); }
inline F vabs(F v) { return _mm256_andnot_ps(broadcast(-0.0f), v); }
inline F negate(F v) { return _mm256_xor_ps(v, broadcast(-0.0f)); }
inline F relu(F v) { return _mm256_and_ps(v, _mm256_cmp_ps(v, zero(), _CMP_GT_OQ)); }
inline bool all_finite(F v) {
  return _mm256_movemask_ps(_mm256_cmp_ps(vabs(v), broadcast(__FLT_MAX__), _CMP_LE_OQ)) == 0xff;
}
inline float sqrt_scalar(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
inline float first_lane(F v) { return _mm256_cvtss_f32(v); }

inline __m128i load_halves(const uint16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m128i load_first_halves(const uint16_t* p, int n) {
  alignas(16) uint16_t halves[8] = {};
  for (int i = 0; i < n; ++i) halves[i] = p[i];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(halves));
}
inline F widen_half(const uint16_t* p) { return _mm256_cvtph_ps(load_halves(p)); }
inline F widen_half_first(const uint16_t* p, int n) {
  return _mm256_cvtph_ps(load_first_halves(p, n));
}
inline F widen_bits(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline F widen_bfloat16(const uint16_t* p) { return widen_bits(load_halves(p)); }
inline F widen_bfloat16_first(const uint16_t* p, int n) {
  return widen_bits(load_first_halves(p, n));
}
inline __m128i to_int8(F v) {
  const __m256i integers = _mm256_cvtps_epi32(v);
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256(integers, 1));
  return _mm_packs_epi16(words, words);
}
inline void store_int8(int8_t* p, F v) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), to_int8(v));
}
inline void store_first_int8(int8_t* p, int n, F v) {
  alignas(16) int8_t bytes[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(bytes), to_int8(v));
  for (int i = 0; i < n; ++i) p[i] = bytes[i];
}

inline float fold_lanes(F v) {
  const __m128 w4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 w2 = _mm_add_ps(w4, _mm_movehl_ps(w4, w4));
  return _mm_cvtss_f32(_mm_add_ss(w2, _mm_shuffle_ps(w2, w2, 1)));
}
inline float max_lane(F v) {
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}

inline F if_greater(F x, float limit, F yes, F no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, broadcast(limit), _CMP_GT_OQ));
}
inline F if_less(F x, float limit, F yes, F no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, broadcast(limit), _CMP_LT_OQ));
}

using Bits = __m256i;
inline Bits bits_of(F v) { return _mm256_castps_si256(v); }
inline F float_of(Bits v) { return _mm256_castsi256_ps(v); }
inline Bits subtract(Bits a, Bits b) { return _mm256_sub_epi32(a, b); }
inline Bits halve(Bits v) { return _mm256_srai_epi32(v, 1); }
inline Bits to_exponent(Bits v) {
  return _mm256_slli_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(127)), 23);
}

#include "kernels/cpu/simd_exp.inc"

// ---- Ternary product ------------------------------------------------------------------------

#include "kernels/cpu/x86_lanes.inc"

using I = __m256i;
constexpr int kPlaneBytes = 32;
constexpr int kTileTokens = 2;

inline I zero_bytes() { return _mm256_setzero_si256(); }
inline I load_bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline I load_first_bytes(const uint8_t* p, size_t n) {
  alignas(32) uint8_t bytes[kPlaneBytes] = {};
  __builtin_memcpy(bytes, p, n);
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
}
inline __attribute__((always_inline)) void split_fields(I packed, I (&u)[4]) {
  const I low = _mm256_set1_epi8(3);
  const I w = _mm256_xor_si256(packed, _mm256_set1_epi8(0x55));
  u[0] = _mm256_and_si256(w, low);
  u[1] = _mm256_and_si256(_mm256_srli_epi16(w, 2), low);
  u[2] = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
  u[3] = _mm256_and_si256(_mm256_srli_epi16(w, 6), low);
}

inline I widen_sums(I pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// A step adds at most 4 * 2 * 2 * 128 = 2048 to a 16-bit sum: 15 steps fit.
constexpr int kStepsPerFlush = 15;

using Sum = I;
inline Sum zero_sum() { return zero_bytes(); }

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

inline int32_t add_lanes(I v) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return _mm_cvtsi128_si32(sum);
}
inline __m128i add_lanes_of_4(I a, I b, I c, I d) {
  const I abcd = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
  return _mm_add_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1));
}

inline I pack_codes(const F (&z)[4]) {
  // Undoes the lane interleaving of two packs.
  const I in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const I low = _mm256_packs_epi32(_mm256_cvtps_epi32(z[0]), _mm256_cvtps_epi32(z[1]));
  const I high = _mm256_packs_epi32(_mm256_cvtps_epi32(z[2]), _mm256_cvtps_epi32(z[3]));
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), in_order);
}
inline I add_bytes(I sums, I bytes) {
  return _mm256_add_epi32(sums, widen_sums(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes)));
}
inline void store_planes(I bytes, int8_t* to) {
  // Bytes 0, 4, 8, 12 of each 16 to its first word, 1, 5, 9, 13 to the second, ...
  const I by_plane = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const I planes_together = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const I planes =
      _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(bytes, by_plane), planes_together);
  const __m128i planes01 = _mm256_castsi256_si128(planes);
  const __m128i planes23 = _mm256_extracti128_si256(planes, 1);
  const auto store_8 = [&](int plane, __m128i v) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + plane * kPlaneBytes), v);
  };
  store_8(0, planes01);
  store_8(1, _mm_unpackhi_epi64(planes01, planes01));
  store_8(2, planes23);
  store_8(3, _mm_unpackhi_epi64(planes23, planes23));
}

// ---- Certified head --------------------------------------------------------------------------

inline int64_t add_lanes_wide(const __m256i (&v)[4]) {
  __m256i sum = _mm256_setzero_si256();
  for (const __m256i& part : v) {
    sum = _mm256_add_epi64(sum, _mm256_cvtepi32_epi64(_mm256_castsi256_si128(part)));
    sum = _mm256_add_epi64(sum, _mm256_cvtepi32_epi64(_mm256_extracti128_si256(part, 1)));
  }
  const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  return _mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1);
}

// One row of codes with kTokens rows of steps, of `pitch` columns.
template <int kTokens>
inline void certified_product(const int8_t* codes, const int16_t* steps, int pitch, float* out,
                              size_t out_stride) {
  // 32 lanes: each takes at most kMaxCertifiedCols / 32 products, which fit.
  __m256i acc[kTokens][4] = {};
  for (int c = 0; c < pitch; c += 64) {
    for (int j = 0; j < 4; ++j) {
      const __m256i w = _mm256_cvtepi8_epi16(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + c + 16 * j)));
      for (int t = 0; t < kTokens; ++t) {
        const __m256i h =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(steps + t * pitch + c + 16 * j));
        acc[t][j] = _mm256_add_epi32(acc[t][j], _mm256_madd_epi16(w, h));
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    out[static_cast<size_t>(t) * out_stride] = static_cast<float>(add_lanes_wide(acc[t]));
  }
}

constexpr int kHeadTokens = 2;

#include "kernels/cpu/ternary.inc"

// The rest is written over floats alone.
#include "kernels/cpu/simd.inc"

// ---- Attention over codes -------------------------------------------------------------------

inline F fmsub(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
inline F turn_lanes(F v, int block) {
  const auto butterfly = [](F a, F partner, auto blend) {
    return blend(_mm256_add_ps(a, partner), _mm256_sub_ps(partner, a));
  };
  if (block >= 2) {
    v = butterfly(v, _mm256_permute_ps(v, 0xb1),
                  [](F sum, F difference) { return _mm256_blend_ps(sum, difference, 0xaa); });
  }
  if (block >= 4) {
    v = butterfly(v, _mm256_permute_ps(v, 0x4e),
                  [](F sum, F difference) { return _mm256_blend_ps(sum, difference, 0xcc); });
  }
  if (block >= 8) {
    v = butterfly(v, _mm256_permute2f128_ps(v, v, 1),
                  [](F sum, F difference) { return _mm256_blend_ps(sum, difference, 0xf0); });
  }
  return v;
}
inline void store_digits(F v, int8_t* high, int8_t* low) {
  const __m256i integers = _mm256_cvtps_epi32(v);
  const __m128i codes =
      _mm_packs_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256(integers, 1));
  const __m128i high_digits = _mm_srai_epi16(_mm_add_epi16(codes, _mm_set1_epi16(128)), 8);
  const __m128i low_digits = _mm_sub_epi16(codes, _mm_slli_epi16(high_digits, 8));
  const __m128i digits = _mm_packs_epi16(high_digits, low_digits);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(high), digits);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(low), _mm_unpackhi_epi64(digits, digits));
}
inline F to_floats(const int32_t* p) {
  return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_bits(int32_t* p, F v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_castps_si256(v));
}
inline F add_exponent(F p, F t) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}

using W = __m256i;
constexpr int kWordLanes = 8;
using Pairs = __m256i;
inline W load_words(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_words(int32_t* p, W v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline W broadcast_word(int32_t word) { return _mm256_set1_epi32(word); }
inline Pairs broadcast_pair(int32_t pair) { return _mm256_set1_epi32(pair); }
inline W multiply_pairs(W acc, Pairs a, Pairs b) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}
inline Pairs even_bytes(W v) { return _mm256_and_si256(v, _mm256_set1_epi16(0xff)); }
inline Pairs odd_bytes(W v) { return _mm256_srli_epi16(v, 8); }
inline Pairs even_digits(W v) { return _mm256_maddubs_epi16(_mm256_set1_epi16(1), v); }
inline Pairs odd_digits(W v) { return _mm256_srai_epi16(v, 8); }
inline Pairs add_pairs(Pairs a, Pairs b) { return _mm256_add_epi16(a, b); }
inline void pair_positions(const int32_t* bits, int32_t* codes, int32_t* high) {
  // The lower halves of each word and of that two behind it.
  const auto pair = [](W v) {
    const W second = _mm256_slli_epi32(_mm256_shuffle_epi32(v, 0x0e), 16);
    return _mm256_blend_epi16(v, second, 0xaa);
  };
  const W words = load_words(bits);
  store_words(codes, pair(_mm256_xor_si256(words, _mm256_set1_epi32(0x8000))));
  store_words(high, pair(_mm256_srli_epi16(words, 8)));
}

#include "kernels/cpu/integer_pairs.inc"

// The rest is written over those products.
#include "kernels/cpu/integer.inc"

// ---- Groups ---------------------------------------------------------------------------------

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
inline void add_group_lanes(I a, I b, I c, I d, I4* sums) { *sums = add_lanes_of_4(a, b, c, d); }

#include "kernels/cpu/groups.inc"

}  // namespace

const Primitives kAvx2 = {
    "avx2",      kPlaneBytes, quantise,           ternary_tiles, code_groups,
    group_tiles, rms_norm,    dense_rows,         largest,       powers,
    row_amax,    code_row,    certified_products, gate,          add_rows,
    attention,   turn_row,    code_digits,        code_query,    integer_attention,
    merge_states};

}  // namespace edgellm::cpu
