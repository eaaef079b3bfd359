// Sums and maxima over a warp, and the end of canonical_sum.
#pragma once

#include "kernels/cuda/device/common.cuh"

namespace edgellm::cuda {

__device__ inline float fold_warp(float value) {
  for (int width = 16; width >= 1; width /= 2) value += __shfl_xor_sync(kAllLanes, value, width);
  return value;
}

// The canonical sum of the 256 partial sums, by each warp for itself.
__device__ inline float fold_partials(const float* partial) {
  const float* p = partial + threadIdx.x % 32;
  const float a = p[0] + p[128];
  const float b = p[32] + p[160];
  const float c = p[64] + p[192];
  const float d = p[96] + p[224];
  return fold_warp((a + c) + (b + d)) + 0.0f;
}

// The same where lane l has the partial sums 4 l .. 4 l + 3, then those 128 further on.
__device__ inline float fold_fours(float (&p)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) p[i] += p[i + 4];
#pragma unroll
  for (int width = 16; width >= 1; width /= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] += __shfl_xor_sync(kAllLanes, p[i], width);
  }
  return ((p[0] + p[2]) + (p[1] + p[3])) + 0.0f;
}

__device__ inline uint32_t max_warp(uint32_t value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAllLanes, value);
#else
  for (int width = 16; width >= 1; width /= 2) {
    value = max(value, __shfl_xor_sync(kAllLanes, value, width));
  }
  return value;
#endif
}

__device__ inline int sum_warp(int value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, value);
#else
  for (int width = 16; width >= 1; width /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, width);
  }
  return value;
#endif
}

// Exact except for the sign of a zero.
__device__ inline float max_warp(float value) {
  // Bits whose order as integers is that of the numbers.
  const uint32_t bits = __float_as_uint(value);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  const uint32_t largest = max_warp(ordered);
  return __uint_as_float((largest & 0x80000000u) != 0 ? largest & 0x7fffffffu : ~largest);
}

__device__ inline float rms_factor(float sum_of_squares, int n, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(n) + eps);
}

__device__ inline uint64_t sum_warp(uint64_t value) {
  for (int width = 16; width >= 1; width /= 2) value += __shfl_xor_sync(kAllLanes, value, width);
  return value;
}

__device__ inline double sum_warp(double value) {
  for (int width = 16; width >= 1; width /= 2) value += __shfl_xor_sync(kAllLanes, value, width);
  return value;
}

}  // namespace edgellm::cuda
