// AVX-VNNI: AVX2 with dot products of bytes and of int16, of processors without AVX-512 (Intel
// since Alder Lake, AMD since Zen 5). Compiled with those instructions switched on, so nothing here
// may be shared with other files: everything but the table at the end has internal linkage.
#include <immintrin.h>

#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {
namespace {

#include "kernels/cpu/avx2_lanes.inc"

// ---- Products of integers -------------------------------------------------------------------

inline W multiply_pairs(W acc, Pairs a, Pairs b) { return _mm256_dpwssd_avx_epi32(acc, a, b); }

inline __attribute__((always_inline)) I multiply_plane(I sums, I u, const int8_t* plane) {
  return _mm256_dpbusd_avx_epi32(sums, u,
                                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane)));
}
inline I add_bytes(I sums, I bytes) {
  return _mm256_dpbusd_avx_epi32(sums, _mm256_set1_epi8(1), bytes);
}

constexpr int kTileTokens = 2;

// Lanes of 32 bits hold a row of 2^24 columns (ops.h), also those of by_4: a step adds at most
// 2 * 4 * 8 * 128 = 2^13.
constexpr int kStepsPerFlush = (1 << 24) / (4 * kPlaneBytes);

template <int T>
struct ProductSum {
  I sum;

  static void split(I packed, I (&u)[4]) { split_fields(packed, u); }
  void clear() { sum = zero_bytes(); }
  inline __attribute__((always_inline)) void add(const I (&u)[4], const int8_t* planes) {
    for (int k = 0; k < 4; ++k) sum = multiply_plane(sum, u[k], planes + k * kPlaneBytes);
  }
  void flush() {}
  I lanes() const { return sum; }
};

// A single activation row pays for every instruction: fields 1 and 3 stay where they are in a half
// of a byte, and their sum, 4 times too large, is shifted instead. Two sums a row are also two
// chains for a latency of 5. More would not fit into 16 registers.
template <>
struct ProductSum<1> {
  I by_1;
  I by_4;

  static inline __attribute__((always_inline)) void split(I packed, I (&u)[4]) {
    const I low = _mm256_set1_epi8(0x03);
    const I high = _mm256_set1_epi8(0x0c);
    const I w = _mm256_xor_si256(packed, _mm256_set1_epi8(0x55));
    const I upper = _mm256_srli_epi16(w, 4);
    u[0] = _mm256_and_si256(w, low);
    u[1] = _mm256_and_si256(w, high);
    u[2] = _mm256_and_si256(upper, low);
    u[3] = _mm256_and_si256(upper, high);
  }
  void clear() { by_1 = by_4 = zero_bytes(); }
  inline __attribute__((always_inline)) void add(const I (&u)[4], const int8_t* planes) {
    by_1 = multiply_plane(by_1, u[0], planes);
    by_4 = multiply_plane(by_4, u[1], planes + kPlaneBytes);
    by_1 = multiply_plane(by_1, u[2], planes + 2 * kPlaneBytes);
    by_4 = multiply_plane(by_4, u[3], planes + 3 * kPlaneBytes);
  }
  void flush() {}
  I lanes() const { return _mm256_add_epi32(by_1, _mm256_srai_epi32(by_4, 2)); }
};

inline I group_products(const I (&u)[4], const int8_t* high, const int8_t* low) {
  I high_sum = zero_bytes();
  I low_sum = zero_bytes();
  for (int k = 0; k < 4; ++k) {
    high_sum = multiply_plane(high_sum, u[k], high + k * kPlaneBytes);
    low_sum = multiply_plane(low_sum, u[k], low + k * kPlaneBytes);
  }
  return _mm256_add_epi32(_mm256_slli_epi32(high_sum, 8), low_sum);
}

#include "kernels/cpu/avx2_products.inc"

}  // namespace

const Primitives kAvxVnni = {
    "avx_vnni",  kPlaneBytes, quantise,           ternary_tiles, code_groups,
    group_tiles, rms_norm,    dense_rows,         largest,       powers,
    row_amax,    code_row,    certified_products, gate,          add_rows,
    attention,   turn_row,    code_digits,        code_query,    integer_attention,
    merge_states};

}  // namespace edgellm::cpu
