// AVX-512 with VNNI. Compiled with those instructions switched on, so nothing here may be shared
// with other files: everything but the table at the end has internal linkage.
#include <immintrin.h>

#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {
namespace {

using F = __m512;
constexpr int kLanes = 16;
constexpr int kAccumulators = 16;  // all 256 partial sums; 16 of the 32 registers are left

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline F zero() { return _mm512_setzero_ps(); }
inline F broadcast(float v) { return _mm512_set1_ps(v); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline F load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void store(float* p, F v) { _mm512_storeu_ps(p, v); }
inline void store_first(float* p, int n, F v) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fmadd(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F vmax(F a, F b) { return _mm512_max_ps(a, b); }
inline F vabs(F v) { return _mm512_abs_ps(v); }
inline F negate(F v) { return _mm512_xor_ps(v, broadcast(-0.0f)); }
inline F relu(F v) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, zero(), _CMP_GT_OQ), v); }
inline bool all_finite(F v) {
  return _mm512_cmp_ps_mask(vabs(v), broadcast(__FLT_MAX__), _CMP_LE_OQ) == 0xffff;
}
inline float sqrt_scalar(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
inline float first_lane(F v) { return _mm512_cvtss_f32(v); }

inline F widen_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F widen_half_first(const uint16_t* p, int n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
inline F widen_bits(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline F widen_bfloat16(const uint16_t* p) {
  return widen_bits(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F widen_bfloat16_first(const uint16_t* p, int n) {
  return widen_bits(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
inline __m128i to_int8(F v) { return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)); }
inline void store_int8(int8_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_int8(v));
}
inline void store_first_int8(int8_t* p, int n, F v) {
  _mm_mask_storeu_epi8(p, first_lanes(n), to_int8(v));
}

inline __m256 upper_half(F v) { return _mm512_extractf32x8_ps(v, 1); }

inline float fold_lanes(F v) {
  const __m256 w8 = _mm256_add_ps(_mm512_castps512_ps256(v), upper_half(v));
  const __m128 w4 = _mm_add_ps(_mm256_castps256_ps128(w8), _mm256_extractf128_ps(w8, 1));
  const __m128 w2 = _mm_add_ps(w4, _mm_movehl_ps(w4, w4));
  return _mm_cvtss_f32(_mm_add_ss(w2, _mm_shuffle_ps(w2, w2, 1)));
}
inline float max_lane(F v) { return _mm512_reduce_max_ps(v); }

inline F if_greater(F x, float limit, F yes, F no) {
  return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(x, broadcast(limit), _CMP_GT_OQ), yes);
}
inline F if_less(F x, float limit, F yes, F no) {
  return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(x, broadcast(limit), _CMP_LT_OQ), yes);
}

// e * 2^(shifted - round), the difference taken of the bits, in two steps as canonical_exp does.
inline F times_power_of_two(F e, F shifted, F round) {
  const __m512i exponent =
      _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(round));
  const __m512i half = _mm512_srai_epi32(exponent, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512i scale1 = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
  const __m512i scale2 =
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(exponent, half), bias), 23);
  return mul(mul(e, _mm512_castsi512_ps(scale1)), _mm512_castsi512_ps(scale2));
}

#include "kernels/cpu/simd_exp.inc"

// ---- Ternary product ------------------------------------------------------------------------

constexpr int kPlaneBytes = 64;
constexpr int kGroupColumns = 4 * kPlaneBytes;

// Writes the int8 codes of n values in plane order, returns their sum.
int32_t store_codes(const float* x, const float* gain, float s, int n, int8_t* codes) {
  const F scale = broadcast(s);
  // Bytes 0, 4, 8, 12 of each 16 to its first word, 1, 5, 9, 13 to the second, ...
  const __m512i by_plane =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i planes_together =
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i sum = _mm512_setzero_si512();
  for (int g = 0; g < n; g += kGroupColumns) {
    alignas(64) int8_t group[kGroupColumns];
    for (int i = 0; i < kGroupColumns; i += kLanes) {
      const int left = n - g - i;
      F z = zero();
      if (left >= kLanes) {
        z = gain ? mul(load(x + g + i), load(gain + g + i)) : load(x + g + i);
      } else if (left > 0) {
        z = load_first(x + g + i, left);
        if (gain) z = mul(z, load_first(gain + g + i, left));
      }
      const __m512i code = _mm512_cvtps_epi32(mul(z, scale));
      _mm_store_si128(reinterpret_cast<__m128i*>(group + i), _mm512_cvtsepi32_epi8(code));
    }
    for (int b = 0; b < kGroupColumns; b += 64) {
      const __m512i v = _mm512_load_si512(group + b);
      sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), v);
      const __m512i planes =
          _mm512_permutexvar_epi32(planes_together, _mm512_shuffle_epi8(v, by_plane));
      int8_t* to = codes + g + b / 4;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(planes));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kPlaneBytes),
                       _mm512_extracti32x4_epi32(planes, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * kPlaneBytes),
                       _mm512_extracti32x4_epi32(planes, 2));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 3 * kPlaneBytes),
                       _mm512_extracti32x4_epi32(planes, 3));
    }
  }
  return _mm512_reduce_add_epi32(sum);
}

// One step: 64 bytes of codes of R rows with 256 codes of each of T activation rows.
//
// The stored codes 00, 01, 11 xor 01 are 1, 0, 2: 1 - w for the weight w. So the products add up to
// sum(x) - w . x, with no subtraction and no lookup; sum(x) is known.
template <int R, int T, int kChains>
inline __attribute__((always_inline)) void step(const __m512i (&packed)[R], const int8_t* x,
                                                size_t stride, __m512i (&acc)[R][T][kChains]) {
  const __m512i low = _mm512_set1_epi8(3);
  for (int r = 0; r < R; ++r) {
    const __m512i w = _mm512_xor_si512(packed[r], _mm512_set1_epi8(0x55));
    const __m512i u0 = _mm512_and_si512(w, low);
    const __m512i u1 = _mm512_and_si512(_mm512_srli_epi16(w, 2), low);
    const __m512i u2 = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
    const __m512i u3 = _mm512_and_si512(_mm512_srli_epi16(w, 6), low);
    for (int t = 0; t < T; ++t) {
      const int8_t* a = x + static_cast<size_t>(t) * stride;
      __m512i& first = acc[r][t][0];
      __m512i& second = acc[r][t][kChains - 1];
      first = _mm512_dpbusd_epi32(first, u0, _mm512_loadu_si512(a));
      second = _mm512_dpbusd_epi32(second, u1, _mm512_loadu_si512(a + kPlaneBytes));
      first = _mm512_dpbusd_epi32(first, u2, _mm512_loadu_si512(a + 2 * kPlaneBytes));
      second = _mm512_dpbusd_epi32(second, u3, _mm512_loadu_si512(a + 3 * kPlaneBytes));
    }
  }
}

inline int32_t add_lanes(__m512i v) { return _mm512_reduce_add_epi32(v); }

// The sums of the lanes of four vectors.
inline __m128i add_lanes_of_4(__m512i a, __m512i b, __m512i c, __m512i d) {
  const auto halves = [](__m512i v) {
    return _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  };
  const __m256i ab = _mm256_hadd_epi32(halves(a), halves(b));
  const __m256i cd = _mm256_hadd_epi32(halves(c), halves(d));
  const __m256i abcd = _mm256_hadd_epi32(ab, cd);
  return _mm_add_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1));
}

#include "kernels/cpu/scale_products.inc"

template <int R, int T>
inline void product_tile(const TernaryMatrix& w, size_t row_bytes, int i, const QuantisedRows& x,
                         int t_begin, float* out, size_t out_stride) {
  // A single activation row leaves few independent chains of dpbusd (latency 4 to 5): split each.
  constexpr int kChains = T == 1 ? 2 : 1;
  __m512i acc[R][T][kChains];
  for (auto& row : acc) {
    for (auto& cell : row) {
      for (__m512i& chain : cell) chain = _mm512_setzero_si512();
    }
  }
  const uint8_t* codes = w.codes + static_cast<size_t>(i) * row_bytes;
  const int8_t* activation = x.codes + static_cast<size_t>(t_begin) * x.stride;
  __m512i packed[R];
  size_t b = 0;
  for (; b + kPlaneBytes <= row_bytes; b += kPlaneBytes) {
    for (int r = 0; r < R; ++r) {
      packed[r] = _mm512_loadu_si512(codes + static_cast<size_t>(r) * row_bytes + b);
    }
    step<R, T, kChains>(packed, activation + 4 * b, x.stride, acc);
  }
  if (b < row_bytes) {
    const __mmask64 rest = (1ull << (row_bytes - b)) - 1ull;
    for (int r = 0; r < R; ++r) {
      packed[r] = _mm512_maskz_loadu_epi8(rest, codes + static_cast<size_t>(r) * row_bytes + b);
    }
    step<R, T, kChains>(packed, activation + 4 * b, x.stride, acc);
  }
  for (int t = 0; t < T; ++t) {
    if constexpr (kChains == 2) {
      for (int r = 0; r < R; ++r) acc[r][t][0] = _mm512_add_epi32(acc[r][t][0], acc[r][t][1]);
    }
    float* to = out + static_cast<size_t>(t) * out_stride;
    if constexpr (R == 4) {
      scale_products(w, i, x, t_begin + t,
                     add_lanes_of_4(acc[0][t][0], acc[1][t][0], acc[2][t][0], acc[3][t][0]), to);
    } else {
      scale_product(w, i, x, t_begin + t, add_lanes(acc[0][t][0]), to);
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
    for (; t + 4 <= t_end; t += 4, to += 4 * out_stride) {
      product_tile<4, 4>(w, row_bytes, i, x, t, to, out_stride);
    }
    for (; t < t_end; ++t, to += out_stride) {
      product_tile<4, 1>(w, row_bytes, i, x, t, to, out_stride);
    }
  }
  for (; i < i_end; ++i) {
    float* to = out + (i - i_begin);
    for (int t = t_begin; t < t_end; ++t, to += out_stride) {
      product_tile<1, 1>(w, row_bytes, i, x, t, to, out_stride);
    }
  }
}

// ---- Certified head --------------------------------------------------------------------------

inline __m512i widen_sum(__m512i v) {
  return _mm512_add_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(v)),
                          _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(v, 1)));
}

inline __m512i load_codes(const int8_t* codes) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
}

// One row of codes with one of steps, of `pitch` columns.
inline float certified_product(const int8_t* codes, const int16_t* steps, int pitch) {
  // At least 32 lanes: each takes at most kMaxCertifiedCols / 32 products, which fit.
  __m512i acc[4] = {};
  const auto add = [&](int c, int j) {
    acc[j] = _mm512_dpwssd_epi32(acc[j], load_codes(codes + c + 32 * j),
                                 _mm512_loadu_si512(steps + c + 32 * j));
  };
  int c = 0;
  for (; c + 128 <= pitch; c += 128) {
    for (int j = 0; j < 4; ++j) add(c, j);
  }
  if (c < pitch) {
    for (int j = 0; j < 2; ++j) add(c, j);
  }
  const __m512i sum = _mm512_add_epi64(_mm512_add_epi64(widen_sum(acc[0]), widen_sum(acc[1])),
                                       _mm512_add_epi64(widen_sum(acc[2]), widen_sum(acc[3])));
  return static_cast<float>(_mm512_reduce_add_epi64(sum));
}

// The same with four rows of steps, which share the widened codes.
inline void certified_product_of_4(const int8_t* codes, const int16_t* steps, int pitch, float* out,
                                   size_t out_stride) {
  __m512i acc[4][2];
  for (auto& of_token : acc) {
    for (__m512i& a : of_token) a = _mm512_setzero_si512();  // `= {}` would go through memory
  }
  for (int c = 0; c < pitch; c += 64) {
    for (int j = 0; j < 2; ++j) {
      const __m512i w = load_codes(codes + c + 32 * j);
      for (int t = 0; t < 4; ++t) {
        acc[t][j] =
            _mm512_dpwssd_epi32(acc[t][j], w, _mm512_loadu_si512(steps + t * pitch + c + 32 * j));
      }
    }
  }
  __m512i sum[4];
  for (int t = 0; t < 4; ++t) {
    sum[t] = _mm512_add_epi64(widen_sum(acc[t][0]), widen_sum(acc[t][1]));
  }
  // Each lane of the result adds up one of the four.
  const __m512i low = _mm512_add_epi64(_mm512_unpacklo_epi64(sum[0], sum[1]),
                                       _mm512_unpackhi_epi64(sum[0], sum[1]));
  const __m512i high = _mm512_add_epi64(_mm512_unpacklo_epi64(sum[2], sum[3]),
                                        _mm512_unpackhi_epi64(sum[2], sum[3]));
  const __m512i pairs = _mm512_add_epi64(_mm512_shuffle_i64x2(low, high, 0x44),
                                         _mm512_shuffle_i64x2(low, high, 0xee));
  const __m512i folded = _mm512_add_epi64(pairs, _mm512_shuffle_i64x2(pairs, pairs, 0xb1));
  const __m256 products = _mm512_cvtepi64_ps(folded);
  // Lanes of 128 bits: low, low, high, high.
  const __m128 first = _mm256_castps256_ps128(products);
  const __m128 second = _mm256_extractf128_ps(products, 1);
  out[0] = _mm_cvtss_f32(first);
  out[out_stride] = _mm_cvtss_f32(_mm_shuffle_ps(first, first, 1));
  out[2 * out_stride] = _mm_cvtss_f32(second);
  out[3 * out_stride] = _mm_cvtss_f32(_mm_shuffle_ps(second, second, 1));
}

// One row of codes at a time: the processor fetches ahead in one stream, hardly in four (17 GB/s).
void certified_products(const CertifiedHead& certified, int i_begin, int i_end,
                        const int16_t* steps, int t_count, float* out, size_t out_stride) {
  const int pitch = (certified.cols + 63) / 64 * 64;
  for (int i = i_begin; i < i_end; ++i) {
    const int8_t* codes = certified.codes + static_cast<size_t>(i) * static_cast<size_t>(pitch);
    const int16_t* of = steps;
    float* to = out + (i - i_begin);
    int t = 0;
    for (; t + 4 <= t_count; t += 4, of += 4 * pitch, to += 4 * out_stride) {
      certified_product_of_4(codes, of, pitch, to, out_stride);
    }
    for (; t < t_count; ++t, of += pitch, to += out_stride)
      *to = certified_product(codes, of, pitch);
  }
}

#include "kernels/cpu/simd.inc"

}  // namespace

const Primitives kAvx512 = {"avx512",           kPlaneBytes, quantise, ternary_rows,
                            rms_norm,           dense_rows,  row_amax, code_row,
                            certified_products, gate,        add_rows, attention};

}  // namespace edgellm::cpu
