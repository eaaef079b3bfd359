// Dot products of ternary weights and int8 activations with dp4a.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace edgellm::cuda {

// acc + sum of the four products of unsigned bytes of `a` and signed bytes of `b`.
__device__ inline int dot_u8_s8(uint32_t a, int b, int acc) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b));
  return acc;
}

// Dot products of weights (cuda.h) with int8 activations, sixteen columns at a time: the sum of
// (w + 1) * x.
//
// One logic operation leaves the four weights of a bit field in place, worth 1 or 16 times as much
// (the other two fields are shifted first); sum() shifts their sum down, exactly.
struct RowDot {
  int low = 0;
  int high = 0;

  // `weights`: a word of a row; `x`: the codes of its sixteen columns.
  __device__ void add(uint32_t weights, uint4 x) {
    const uint32_t odd = weights >> 2;
    low = dot_u8_s8(weights & 0x03030303u, static_cast<int>(x.x), low);
    low = dot_u8_s8(odd & 0x03030303u, static_cast<int>(x.y), low);
    high = dot_u8_s8(weights & 0x30303030u, static_cast<int>(x.z), high);
    high = dot_u8_s8(odd & 0x30303030u, static_cast<int>(x.w), high);
  }
  __device__ int sum() const { return low + (high >> 4); }
};

}  // namespace edgellm::cuda
