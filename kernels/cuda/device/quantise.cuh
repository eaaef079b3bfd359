// Quantising activation rows (docs/numerics.md): what the GEMV, the skinny GEMM and the GEMM share.
#pragma once

#include "kernels/cuda/device/common.cuh"

namespace edgellm::cuda {

// Rows with their folded norm.
struct Input {
  const float* x;     // [rows, cols]
  const float* gain;  // [cols] or null
  float eps;
  int cols;
  int32_t* fault;
  int layer;
};

// Whether `p` can be read 16 bytes at a time; null, which is not read, can.
inline bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Four columns of the row from `at` on, those beyond its end zero.
template <bool kVector>
__device__ inline float4 four(const float* row, int at, int cols) {
  if constexpr (kVector) {
    return at < cols ? *reinterpret_cast<const float4*>(row + at) : float4{};
  } else {
    return {at < cols ? row[at] : 0.0f, at + 1 < cols ? row[at + 1] : 0.0f,
            at + 2 < cols ? row[at + 2] : 0.0f, at + 3 < cols ? row[at + 3] : 0.0f};
  }
}

// Four codes, the first in the lowest byte. |z * s| stays below 127.5 (s is 127 over the largest
// |z|, within two roundings), so the sum's low byte is the rounded value and needs no clamp.
__device__ inline uint32_t quantise(float4 z, float s) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const uint32_t a = __float_as_uint(z.x * s + kRound);
  const uint32_t b = __float_as_uint(z.y * s + kRound);
  const uint32_t c = __float_as_uint(z.z * s + kRound);
  const uint32_t d = __float_as_uint(z.w * s + kRound);
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// The magnitude's bits: their order is that of the magnitudes, with infinity and NaN above all.
__device__ inline uint32_t magnitude(float z) { return __float_as_uint(z) & 0x7fffffffu; }
__device__ inline uint32_t magnitude(float4 z) {
  return max(max(magnitude(z.x), magnitude(z.y)), max(magnitude(z.z), magnitude(z.w)));
}

__device__ inline float4 product(float4 a, float4 b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}

// What the codes of a row are made with, by the bits of its largest magnitude.
struct RowFactors {
  float s;      // codes per unit
  bool zero;    // all codes are 0
  bool finite;  // else: a fault
};
__device__ inline RowFactors row_factors(uint32_t largest, bool has_gain) {
  const bool finite = largest < 0x7f800000u;
  const bool zero = !finite || (has_gain && largest == 0);
  const float amax = fmaxf(__uint_as_float(largest), has_gain ? 1e-30f : 1e-5f);
  return {zero ? 1.0f : (1.0f / amax) * 127.0f, zero, finite};
}

}  // namespace edgellm::cuda
