// AVX-VNNI: AVX2 with dot products of bytes and of int16, of processors without AVX-512 (Intel
// since Alder Lake, AMD since Zen 5). Compiled with those instructions switched on, so nothing here
// may be shared with other files: everything but the table at the end has internal linkage.
#include <immintrin.h>

#include "kernels/cpu/fetch_ahead.h"
#include "kernels/cpu/head_codes.h"
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

inline __attribute__((always_inline)) void split_halves(I packed, I (&u)[4]) {
  const I low = _mm256_set1_epi8(0x03);
  const I high = _mm256_set1_epi8(0x0c);
  const I fields = _mm256_xor_si256(packed, _mm256_set1_epi8(0x55));
  const I upper = _mm256_srli_epi16(fields, 4);
  u[0] = _mm256_and_si256(fields, low);
  u[1] = _mm256_and_si256(fields, high);
  u[2] = _mm256_and_si256(upper, low);
  u[3] = _mm256_and_si256(upper, high);
}
inline I add_words(I a, I b) { return _mm256_add_epi32(a, b); }
inline I shift_words_left(I v, int n) { return _mm256_slli_epi32(v, n); }
inline I shift_words_right(I v, int n) { return _mm256_srai_epi32(v, n); }

#include "kernels/cpu/byte_dots.inc"

// The rest is made of those products.
#include "kernels/cpu/avx2_products.inc"

}  // namespace

const Primitives kAvxVnni = {
    "avx_vnni",  kPlaneBytes, quantise,           ternary_tiles, code_groups,
    group_tiles, rms_norm,    dense_rows,         largest,       powers,
    row_amax,    code_row,    certified_products, gate,          add_rows,
    attention,   turn_row,    code_digits,        code_query,    integer_attention,
    merge_states};

}  // namespace edgellm::cpu
