// int8 tiles on the tensor cores.
#pragma once

#include <cstdint>
#include <type_traits>

namespace edgellm::cuda {

// c += a b: a 16 x 32 of type A, b 32 x 8 of type B, as mma.m16n8k32 spreads them over a warp.
template <class A = uint8_t, class B = int8_t>
__device__ inline void multiply_tile(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                     uint32_t b1) {
  constexpr bool kSignedA = std::is_same_v<A, int8_t>;
  constexpr bool kSignedB = std::is_same_v<B, int8_t>;
  static_assert(kSignedA || kSignedB, "nobody has asked for u8 x u8");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define EDGELLM_MULTIPLY(types)                                             \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." types               \
               ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
#else
  // Older tensor cores: the same fragment in quarters of 8 x 16.
#define EDGELLM_QUARTER(types, c0, c1, a_word, b_word)                                            \
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32." types ".s32 {%0,%1}, {%2}, {%3}, {%0,%1};" \
               : "+r"(c0), "+r"(c1)                                                               \
               : "r"(a_word), "r"(b_word))
#define EDGELLM_MULTIPLY(types)                 \
  EDGELLM_QUARTER(types, c[0], c[1], a[0], b0); \
  EDGELLM_QUARTER(types, c[0], c[1], a[2], b1); \
  EDGELLM_QUARTER(types, c[2], c[3], a[1], b0); \
  EDGELLM_QUARTER(types, c[2], c[3], a[3], b1)
#endif
  if constexpr (!kSignedA) {
    EDGELLM_MULTIPLY("u8.s8");
  } else if constexpr (kSignedB) {
    EDGELLM_MULTIPLY("s8.s8");
  } else {
    EDGELLM_MULTIPLY("s8.u8");
  }
#undef EDGELLM_MULTIPLY
#undef EDGELLM_QUARTER
}

// Four matrices of 8 rows of 16 bytes in shared memory: lane 8 i + r names row r of matrix i, and
// lane 4 g + t gets bytes 4 t .. 4 t + 3 of row g of each.
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace edgellm::cuda
