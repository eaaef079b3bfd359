// AVX-512 with VNNI. Compiled with those instructions switched on, so nothing here may be shared
// with other files: everything but the table at the end has internal linkage.
#include <immintrin.h>

#include "kernels/cpu/fetch_ahead.h"
#include "kernels/cpu/head_codes.h"
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

using Bits = __m512i;
inline Bits bits_of(F v) { return _mm512_castps_si512(v); }
inline F float_of(Bits v) { return _mm512_castsi512_ps(v); }
inline Bits subtract(Bits a, Bits b) { return _mm512_sub_epi32(a, b); }
inline Bits halve(Bits v) { return _mm512_srai_epi32(v, 1); }
inline Bits to_exponent(Bits v) {
  return _mm512_slli_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(127)), 23);
}

#include "kernels/cpu/simd_exp.inc"

// ---- Ternary product ------------------------------------------------------------------------

#include "kernels/cpu/x86_lanes.inc"

using I = __m512i;
constexpr int kPlaneBytes = 64;
constexpr int kTileTokens = 4;

inline I zero_bytes() { return _mm512_setzero_si512(); }
inline I load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline I load_first_bytes(const uint8_t* p, size_t n) {
  return _mm512_maskz_loadu_epi8((1ull << n) - 1ull, p);
}
inline __attribute__((always_inline)) void split_fields(I packed, I (&u)[4]) {
  const I low = _mm512_set1_epi8(3);
  const I w = _mm512_xor_si512(packed, _mm512_set1_epi8(0x55));
  u[0] = _mm512_and_si512(w, low);
  u[1] = _mm512_and_si512(_mm512_srli_epi16(w, 2), low);
  u[2] = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
  u[3] = _mm512_and_si512(_mm512_srli_epi16(w, 6), low);
}

using Sum = I;
inline Sum zero_sum() { return zero_bytes(); }

inline __attribute__((always_inline)) I multiply_plane(I sums, I u, const int8_t* plane) {
  return _mm512_dpbusd_epi32(sums, u, _mm512_loadu_si512(plane));
}

inline __attribute__((always_inline)) void split_halves(I packed, I (&u)[4]) {
  const I low = _mm512_set1_epi8(0x03);
  const I high = _mm512_set1_epi8(0x0c);
  const I fields = _mm512_xor_si512(packed, _mm512_set1_epi8(0x55));
  const I upper = _mm512_srli_epi16(fields, 4);
  u[0] = _mm512_and_si512(fields, low);
  u[1] = _mm512_and_si512(fields, high);
  u[2] = _mm512_and_si512(upper, low);
  u[3] = _mm512_and_si512(upper, high);
}
inline I add_words(I a, I b) { return _mm512_add_epi32(a, b); }
inline I shift_words_left(I v, int n) { return _mm512_slli_epi32(v, n); }
inline I shift_words_right(I v, int n) { return _mm512_srai_epi32(v, n); }

#include "kernels/cpu/byte_dots.inc"

// The last 16 bytes of four rows, with one activation row, as one vector.
constexpr size_t kShortTail = 16;
inline void add_short_tails(const uint8_t* codes, size_t row_bytes, const int8_t* planes,
                            ProductSum<1> (*sums)[1]) {
  const auto tail = [&](size_t row) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + row * row_bytes));
  };
  I packed = _mm512_castsi128_si512(tail(0));
  packed = _mm512_inserti32x4(packed, tail(1), 1);
  packed = _mm512_inserti32x4(packed, tail(2), 2);
  packed = _mm512_inserti32x4(packed, tail(3), 3);
  I u[4];
  split_halves(packed, u);
  I products[2] = {zero_bytes(), zero_bytes()};
  for (int k = 0; k < 4; ++k) {
    const I plane = _mm512_broadcast_i32x4(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(planes + k * kPlaneBytes)));
    products[k % 2] = _mm512_dpbusd_epi32(products[k % 2], u[k], plane);
  }
  for (int row = 0; row < 4; ++row) {
    const auto lanes = static_cast<__mmask16>(0xf << (4 * row));
    ProductSum<1>& sum = sums[row][0];
    sum.by_1 = _mm512_mask_add_epi32(sum.by_1, lanes, sum.by_1, products[0]);
    sum.by_4 = _mm512_mask_add_epi32(sum.by_4, lanes, sum.by_4, products[1]);
  }
}

inline int32_t add_lanes(I v) { return _mm512_reduce_add_epi32(v); }
inline __m128i add_lanes_of_4(I a, I b, I c, I d) {
  const auto halves = [](I v) {
    return _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  };
  const __m256i ab = _mm256_hadd_epi32(halves(a), halves(b));
  const __m256i cd = _mm256_hadd_epi32(halves(c), halves(d));
  const __m256i abcd = _mm256_hadd_epi32(ab, cd);
  return _mm_add_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1));
}

inline I pack_codes(const F (&z)[4]) {
  I bytes = _mm512_castsi128_si512(to_int8(z[0]));
  bytes = _mm512_inserti32x4(bytes, to_int8(z[1]), 1);
  bytes = _mm512_inserti32x4(bytes, to_int8(z[2]), 2);
  return _mm512_inserti32x4(bytes, to_int8(z[3]), 3);
}
inline I add_bytes(I sums, I bytes) {
  return _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), bytes);
}
inline void store_planes(I bytes, int8_t* to) {
  // Bytes 0, 4, 8, 12 of each 16 to its first word, 1, 5, 9, 13 to the second, ...
  const I by_plane =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const I planes_together = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const I planes = _mm512_permutexvar_epi32(planes_together, _mm512_shuffle_epi8(bytes, by_plane));
  const auto store_16 = [&](int plane, __m128i v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + plane * kPlaneBytes), v);
  };
  store_16(0, _mm512_castsi512_si128(planes));
  store_16(1, _mm512_extracti32x4_epi32(planes, 1));
  store_16(2, _mm512_extracti32x4_epi32(planes, 2));
  store_16(3, _mm512_extracti32x4_epi32(planes, 3));
}

// ---- Certified head --------------------------------------------------------------------------

constexpr int kHeadVectors = 1;

inline __attribute__((always_inline)) void unpack_head_block(const uint8_t* block, I (&u)[1]) {
  const I upper =
      _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block)));
  const I lower =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 32)));
  // Left by 2 for the first 32 columns, right by 2 for the others.
  const I turns = _mm512_inserti64x4(_mm512_set1_epi32(2), _mm256_set1_epi32(30), 1);
  const I shifts = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
  const I upper_bits = _mm512_and_si512(_mm512_rolv_epi32(upper, turns), _mm512_set1_epi8(0x3c));
  constexpr int kFirstOrBoth = 0xf8;  // a | (b & c)
  u[0] = _mm512_ternarylogic_epi32(upper_bits, _mm512_srlv_epi32(lower, shifts),
                                   _mm512_set1_epi8(0x03), kFirstOrBoth);
}

#include "kernels/cpu/ternary.inc"

// The rest of the certified head.
#include "kernels/cpu/head_products.inc"

// The rest is written over floats alone.
#include "kernels/cpu/simd.inc"

// ---- Attention over codes -------------------------------------------------------------------

inline F fmsub(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
inline F butterfly(F v, F partner, __mmask16 upper) {
  return _mm512_mask_sub_ps(_mm512_add_ps(v, partner), upper, partner, v);
}
inline F turn_lanes(F v, int block) {
  if (block >= 2) v = butterfly(v, _mm512_permute_ps(v, 0xb1), 0xaaaa);
  if (block >= 4) v = butterfly(v, _mm512_permute_ps(v, 0x4e), 0xcccc);
  if (block >= 8) v = butterfly(v, _mm512_shuffle_f32x4(v, v, 0xb1), 0xf0f0);
  if (block >= 16) v = butterfly(v, _mm512_shuffle_f32x4(v, v, 0x4e), 0xff00);
  return v;
}
inline void store_digits(F v, int8_t* high, int8_t* low) {
  const __m512i codes = _mm512_cvtps_epi32(v);
  const __m512i high_digits = _mm512_srai_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(128)), 8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(high_digits));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(codes));
}
inline F to_floats(const int32_t* p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
inline void store_bits(int32_t* p, F v) { _mm512_storeu_si512(p, _mm512_castps_si512(v)); }
inline F add_exponent(F p, F t) {
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}

// Four queries and the four vectors of a tile's positions, or of 64 dimensions: 16 of the 32
// registers are sums. A sum takes the products of high digits first and is shifted by 8 bits
// before the others join it; int32 lanes may wrap meanwhile.
constexpr int kQueriesAtOnce = 4;
constexpr int kTileVectors = 4;

inline __m512i word_of(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return _mm512_set1_epi32(word);
}

// A query: high digits, low digits, then what the two steps of a sum start with, because bytes of
// keys are digits + 128.
void arrange_query(const int8_t* high, const int8_t* low, int tile_dims, std::byte* query) {
  const int8_t* from[2] = {high, low};
  I sums[2] = {zero_bytes(), zero_bytes()};
  for (int d = 0; d < tile_dims; d += 32) {
    for (int i = 0; i < 2; ++i) {
      const __m256i digits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from[i] + d));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(query + i * tile_dims + d), digits);
      sums[i] = _mm512_dpwssd_epi32(sums[i], _mm512_cvtepi8_epi16(digits), _mm512_set1_epi16(1));
    }
  }
  const int32_t high_start = -128 * add_lanes(sums[0]);
  const int32_t start[2] = {high_start, high_start - 128 * add_lanes(sums[1])};
  __builtin_memcpy(query + 2 * tile_dims, start, sizeof start);
}

template <int kQueries, int kDigits>
inline void score_tile(const uint8_t* keys, int tile_dims, int head_dim, const std::byte* query,
                       size_t query_stride, int32_t* sums) {
  const uint8_t* low_plane = keys + kAttentionChunk * tile_dims;
  const auto digits = [&](int q, int at) {
    return word_of(query + static_cast<size_t>(q) * query_stride + at);
  };
  I acc[kQueries][kTileVectors];
  for (int q = 0; q < kQueries; ++q) {
    for (I& a : acc[q]) a = digits(q, 2 * tile_dims);
  }
  for (int d = 0; d < head_dim; d += 4) {
    I high[kTileVectors];
    for (int i = 0; i < kTileVectors; ++i)
      high[i] = load_bytes(keys + d * kAttentionChunk + 64 * i);
    for (int q = 0; q < kQueries; ++q) {
      const I q_high = digits(q, d);
      for (int i = 0; i < kTileVectors; ++i)
        acc[q][i] = _mm512_dpbusd_epi32(acc[q][i], high[i], q_high);
    }
  }
  // i16: the offsets of both planes; i8: that of the one.
  for (int q = 0; q < kQueries; ++q) {
    const I start = kDigits == 2
                        ? digits(q, 2 * tile_dims + 4)
                        : _mm512_sub_epi32(digits(q, 2 * tile_dims + 4), digits(q, 2 * tile_dims));
    for (I& a : acc[q]) a = _mm512_add_epi32(_mm512_slli_epi32(a, 8), start);
  }
  for (int d = 0; d < head_dim; d += 4) {
    I high[kTileVectors];
    I low[kTileVectors];
    for (int i = 0; i < kTileVectors; ++i) {
      high[i] = load_bytes(keys + d * kAttentionChunk + 64 * i);
      if constexpr (kDigits == 2) low[i] = load_bytes(low_plane + d * kAttentionChunk + 64 * i);
    }
    for (int q = 0; q < kQueries; ++q) {
      const I q_high = digits(q, d);
      const I q_low = digits(q, tile_dims + d);
      for (int i = 0; i < kTileVectors; ++i) {
        acc[q][i] = _mm512_dpbusd_epi32(acc[q][i], high[i], q_low);
        if constexpr (kDigits == 2) acc[q][i] = _mm512_dpbusd_epi32(acc[q][i], low[i], q_high);
      }
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    for (int i = 0; i < kTileVectors; ++i)
      _mm512_storeu_si512(sums + q * kIntegerChunk + 16 * i, acc[q][i]);
  }
}

struct WeightDigits {
  alignas(64) uint8_t high[kIntegerChunk];
  alignas(64) uint8_t low[kIntegerChunk];
};
inline void weight_digits(const int32_t* bits, int positions, WeightDigits* digits) {
  for (int j = 0; j < positions; j += 16) {
    const I codes = _mm512_loadu_si512(bits + j);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(digits->low + j), _mm512_cvtepi32_epi8(codes));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(digits->high + j),
                     _mm512_cvtepi32_epi8(_mm512_srli_epi32(codes, 8)));
  }
}

// kVectors vectors of dimensions.
template <int kQueries, int kDigits, int kVectors>
inline void weigh_dims(const int8_t* const (&values)[2], int tile_dims, int groups,
                       const WeightDigits* weights, int32_t* sums) {
  constexpr int kTileGroups = kAttentionChunk / 4;
  const auto load_values = [&](int plane, int g, int i) {
    return _mm512_loadu_si512(values[g / kTileGroups] + plane * kAttentionChunk * tile_dims +
                              g % kTileGroups * tile_dims * 4 + 64 * i);
  };
  I acc[kQueries][kVectors];
  for (auto& of_query : acc) {
    for (I& a : of_query) a = zero_bytes();
  }
  for (int g = 0; g < groups; ++g) {
    I high[kVectors];
    for (int i = 0; i < kVectors; ++i) high[i] = load_values(0, g, i);
    for (int q = 0; q < kQueries; ++q) {
      const I p_high = word_of(weights[q].high + 4 * g);
      for (int i = 0; i < kVectors; ++i)
        acc[q][i] = _mm512_dpbusd_epi32(acc[q][i], p_high, high[i]);
    }
  }
  for (auto& of_query : acc) {
    for (I& a : of_query) a = _mm512_slli_epi32(a, 8);
  }
  for (int g = 0; g < groups; ++g) {
    I high[kVectors];
    I low[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      high[i] = load_values(0, g, i);
      if constexpr (kDigits == 2) low[i] = load_values(1, g, i);
    }
    for (int q = 0; q < kQueries; ++q) {
      const I p_high = word_of(weights[q].high + 4 * g);
      const I p_low = word_of(weights[q].low + 4 * g);
      for (int i = 0; i < kVectors; ++i) {
        acc[q][i] = _mm512_dpbusd_epi32(acc[q][i], p_low, high[i]);
        if constexpr (kDigits == 2) acc[q][i] = _mm512_dpbusd_epi32(acc[q][i], p_high, low[i]);
      }
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    for (int i = 0; i < kVectors; ++i)
      _mm512_storeu_si512(sums + q * kMaxIntegerHeadDim + 16 * i, acc[q][i]);
  }
}

template <int kQueries, int kDigits>
inline void weigh_values(const int8_t* const (&values)[2], int tile_dims, int groups, int head_dim,
                         const WeightDigits* weights, int32_t* sums) {
  int d = 0;
  for (; d + 32 < head_dim; d += 64) {
    const int8_t* const at[2] = {values[0] + 4 * d, values[1] + 4 * d};
    weigh_dims<kQueries, kDigits, 4>(at, tile_dims, groups, weights, sums + d);
  }
  if (d < head_dim) {
    const int8_t* const at[2] = {values[0] + 4 * d, values[1] + 4 * d};
    weigh_dims<kQueries, kDigits, 2>(at, tile_dims, groups, weights, sums + d);
  }
}

#include "kernels/cpu/integer.inc"

// ---- Groups ---------------------------------------------------------------------------------

inline void add_group_lanes(I a, I b, I c, I d, I4* sums) {
  const I ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const I cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const I abcd = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const I pairs = _mm512_add_epi32(abcd, _mm512_shuffle_i64x2(abcd, abcd, 0xb1));
  sums[0] = _mm512_castsi512_si128(pairs);
  sums[1] = _mm512_extracti32x4_epi32(pairs, 2);
}

#include "kernels/cpu/groups.inc"

// ---- Several rows ---------------------------------------------------------------------------

#include "kernels/cpu/wide_avx512.inc"

// The same on tile registers.
#include "kernels/cpu/wide_amx.inc"

}  // namespace

const Primitives kAvx512 = {
    "avx512",   kPlaneBytes, quantise, ternary_rows, code_groups, group_rows,         rms_norm,
    dense_rows, largest,     powers,   row_amax,     code_row,    certified_products, gate,
    add_rows,   attention,   turn_row, code_digits,  code_query,  integer_attention,  merge_states};

const Primitives kAvx512Amx = {"avx512_amx",
                               kPlaneBytes,
                               quantise,
                               tile_ternary_rows,
                               code_groups,
                               group_rows,
                               rms_norm,
                               dense_rows,
                               largest,
                               powers,
                               row_amax,
                               code_row,
                               certified_products,
                               gate,
                               add_rows,
                               attention,
                               turn_row,
                               code_digits,
                               code_query,
                               integer_attention,
                               merge_states};

}  // namespace edgellm::cpu
