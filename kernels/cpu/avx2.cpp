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

// e * 2^(shifted - round), the difference taken of the bits, in two steps as canonical_exp does.
inline F times_power_of_two(F e, F shifted, F round) {
  const __m256i exponent =
      _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(round));
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i scale1 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i scale2 =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23);
  return mul(mul(e, _mm256_castsi256_ps(scale1)), _mm256_castsi256_ps(scale2));
}

#include "kernels/cpu/simd_exp.inc"

// ---- Ternary product ------------------------------------------------------------------------

constexpr int kPlaneBytes = 32;
constexpr int kGroupColumns = 4 * kPlaneBytes;

inline int32_t add_lanes(__m256i v) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return _mm_cvtsi128_si32(sum);
}

// The sums of the lanes of four vectors.
inline __m128i add_lanes_of_4(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i abcd = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
  return _mm_add_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1));
}

#include "kernels/cpu/scale_products.inc"

inline __m256i widen_sums(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// Writes the int8 codes of n values in plane order, returns their sum.
int32_t store_codes(const float* x, const float* gain, float s, int n, int8_t* codes) {
  const F scale = broadcast(s);
  // Bytes 0, 4, 8, 12 of each 16 to its first word, 1, 5, 9, 13 to the second, ...
  const __m256i by_plane = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i planes_together = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  // Undoes the lane interleaving of two packs.
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i sum = _mm256_setzero_si256();
  for (int g = 0; g < n; g += kGroupColumns) {
    for (int b = 0; b < kGroupColumns; b += 32) {
      __m256i code[4];
      for (int j = 0; j < 4; ++j) {
        const int i = g + b + 8 * j;
        const int left = n - i;
        F z = zero();
        if (left >= kLanes) {
          z = gain ? mul(load(x + i), load(gain + i)) : load(x + i);
        } else if (left > 0) {
          z = load_first(x + i, left);
          if (gain) z = mul(z, load_first(gain + i, left));
        }
        code[j] = _mm256_cvtps_epi32(mul(z, scale));
      }
      const __m256i v =
          _mm256_permutevar8x32_epi32(_mm256_packs_epi16(_mm256_packs_epi32(code[0], code[1]),
                                                         _mm256_packs_epi32(code[2], code[3])),
                                      in_order);
      sum = _mm256_add_epi32(sum, widen_sums(_mm256_maddubs_epi16(_mm256_set1_epi8(1), v)));
      const __m256i planes =
          _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(v, by_plane), planes_together);
      int8_t* to = codes + g + b / 4;
      const __m128i planes01 = _mm256_castsi256_si128(planes);
      const __m128i planes23 = _mm256_extracti128_si256(planes, 1);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to), planes01);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to + kPlaneBytes),
                       _mm_unpackhi_epi64(planes01, planes01));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 2 * kPlaneBytes), planes23);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 3 * kPlaneBytes),
                       _mm_unpackhi_epi64(planes23, planes23));
    }
  }
  return add_lanes(sum);
}

// One step: 32 bytes of codes of R rows with 128 codes of each of T activation rows.
//
// The stored codes 00, 01, 11 xor 01 are 1, 0, 2: 1 - w for the weight w. So the products add up to
// sum(x) - w . x, with no subtraction and no lookup; sum(x) is known.
template <int R, int T>
inline __attribute__((always_inline)) void step(const __m256i (&packed)[R], const int8_t* x,
                                                size_t stride, __m256i (&acc)[R][T]) {
  const __m256i low = _mm256_set1_epi8(3);
  for (int r = 0; r < R; ++r) {
    const __m256i w = _mm256_xor_si256(packed[r], _mm256_set1_epi8(0x55));
    const __m256i u0 = _mm256_and_si256(w, low);
    const __m256i u1 = _mm256_and_si256(_mm256_srli_epi16(w, 2), low);
    const __m256i u2 = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
    const __m256i u3 = _mm256_and_si256(_mm256_srli_epi16(w, 6), low);
    for (int t = 0; t < T; ++t) {
      const __m256i* a = reinterpret_cast<const __m256i*>(x + static_cast<size_t>(t) * stride);
      const __m256i p01 = _mm256_add_epi16(_mm256_maddubs_epi16(u0, _mm256_loadu_si256(a)),
                                           _mm256_maddubs_epi16(u1, _mm256_loadu_si256(a + 1)));
      const __m256i p23 = _mm256_add_epi16(_mm256_maddubs_epi16(u2, _mm256_loadu_si256(a + 2)),
                                           _mm256_maddubs_epi16(u3, _mm256_loadu_si256(a + 3)));
      acc[r][t] = _mm256_add_epi16(acc[r][t], _mm256_add_epi16(p01, p23));
    }
  }
}

template <int R, int T>
inline void clear(__m256i (&acc)[R][T]) {
  for (auto& row : acc) {
    for (__m256i& cell : row) cell = _mm256_setzero_si256();
  }
}

template <int R, int T>
inline void flush(__m256i (&pairs)[R][T], __m256i (&total)[R][T]) {
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) {
      total[r][t] = _mm256_add_epi32(total[r][t], widen_sums(pairs[r][t]));
    }
  }
  clear(pairs);
}

template <int R, int T>
inline void product_tile(const TernaryMatrix& w, size_t row_bytes, int i, const QuantisedRows& x,
                         int t_begin, float* out, size_t out_stride) {
  // A step adds at most 4 * 2 * 2 * 128 = 2048 to a 16-bit sum: 15 steps fit.
  constexpr int kStepsPerFlush = 15;
  __m256i pairs[R][T];
  __m256i total[R][T];
  clear(pairs);
  clear(total);
  const uint8_t* codes = w.codes + static_cast<size_t>(i) * row_bytes;
  const int8_t* activation = x.codes + static_cast<size_t>(t_begin) * x.stride;
  __m256i packed[R];
  size_t b = 0;
  while (b + kPlaneBytes <= row_bytes) {
    for (int n = 0; n < kStepsPerFlush && b + kPlaneBytes <= row_bytes; ++n, b += kPlaneBytes) {
      for (int r = 0; r < R; ++r) {
        packed[r] = _mm256_loadu_si256(
            reinterpret_cast<const __m256i*>(codes + static_cast<size_t>(r) * row_bytes + b));
      }
      step<R, T>(packed, activation + 4 * b, x.stride, pairs);
    }
    flush(pairs, total);
  }
  if (b < row_bytes) {
    for (int r = 0; r < R; ++r) {
      alignas(32) uint8_t rest[kPlaneBytes] = {};
      __builtin_memcpy(rest, codes + static_cast<size_t>(r) * row_bytes + b, row_bytes - b);
      packed[r] = _mm256_load_si256(reinterpret_cast<const __m256i*>(rest));
    }
    step<R, T>(packed, activation + 4 * b, x.stride, pairs);
    flush(pairs, total);
  }
  for (int t = 0; t < T; ++t) {
    float* to = out + static_cast<size_t>(t) * out_stride;
    if constexpr (R == 4) {
      scale_products(w, i, x, t_begin + t,
                     add_lanes_of_4(total[0][t], total[1][t], total[2][t], total[3][t]), to);
    } else {
      scale_product(w, i, x, t_begin + t, add_lanes(total[0][t]), to);
    }
  }
}

void ternary_rows(const TernaryMatrix& w, int i_begin, int i_end, const QuantisedRows& x,
                  int t_begin, int t_end, float* out, size_t out_stride) {
  const size_t row_bytes = (static_cast<size_t>(w.cols) + 3) / 4;
  int i = i_begin;
  for (; i + 4 <= i_end; i += 4) {
    float* to = out + (i - i_begin);
    int t = t_begin;
    for (; t + 2 <= t_end; t += 2, to += 2 * out_stride) {
      product_tile<4, 2>(w, row_bytes, i, x, t, to, out_stride);
    }
    if (t < t_end) product_tile<4, 1>(w, row_bytes, i, x, t, to, out_stride);
  }
  for (; i < i_end; ++i) {
    float* to = out + (i - i_begin);
    for (int t = t_begin; t < t_end; ++t, to += out_stride) {
      product_tile<1, 1>(w, row_bytes, i, x, t, to, out_stride);
    }
  }
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

void certified_products(const CertifiedHead& certified, int i_begin, int i_end,
                        const int16_t* steps, int t_count, float* out, size_t out_stride) {
  const int pitch = (certified.cols + 63) / 64 * 64;
  for (int i = i_begin; i < i_end; ++i) {
    const int8_t* codes = certified.codes + static_cast<size_t>(i) * static_cast<size_t>(pitch);
    const int16_t* of = steps;
    float* to = out + (i - i_begin);
    int t = 0;
    for (; t + 2 <= t_count; t += 2, of += 2 * pitch, to += 2 * out_stride) {
      certified_product<2>(codes, of, pitch, to, out_stride);
    }
    if (t < t_count) certified_product<1>(codes, of, pitch, to, out_stride);
  }
}

#include "kernels/cpu/simd.inc"

}  // namespace

const Primitives kAvx2 = {"avx2",     kPlaneBytes, quantise, ternary_rows,       rms_norm,
                          dense_rows, row_amax,    code_row, certified_products, gate,
                          add_rows,   attention};

}  // namespace edgellm::cpu
