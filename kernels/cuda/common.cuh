// Device functions that the fused ops share: the canonical sum, quantisation of a row, the ternary
// dot product. Bodies work on a work item given by index and never read blockIdx.
#pragma once

#include <cuda_runtime.h>

#include "kernels/canonical.h"
#include "kernels/cuda/cuda.h"

namespace edgellm::cuda {

// A block has one thread for each of canonical_sum's partial sums: 8 warps, two for each of the
// four schedulers of an SM.
inline constexpr int kThreads = kPartials;
inline constexpr int kWarps = kThreads / 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Scratch of the block-wide reductions.
struct Reduction {
  float partial[kPartials];
  float result;
  float max[kWarps];
};

__device__ inline float fold_warp(float value) {
  for (int width = 16; width >= 1; width /= 2) value += __shfl_xor_sync(kAllLanes, value, width);
  return value;
}

// Partial sums `value` of the block's threads to their canonical sum, returned by every thread.
__device__ inline float fold_block(float value, Reduction& scratch) {
  const int t = static_cast<int>(threadIdx.x);
  scratch.partial[t] = value;
  __syncthreads();
  if (t < 32) {
    const float* p = scratch.partial + t;
    const float a = p[0] + p[128];
    const float b = p[32] + p[160];
    const float c = p[64] + p[192];
    const float d = p[96] + p[224];
    const float sum = fold_warp((a + c) + (b + d)) + 0.0f;
    if (t == 0) scratch.result = sum;
  }
  __syncthreads();
  return scratch.result;
}

__device__ inline float max_block(float value, Reduction& scratch) {
  for (int width = 16; width >= 1; width /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, width));
  }
  if (threadIdx.x % 32 == 0) scratch.max[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = scratch.max[0];
  for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, scratch.max[w]);
  __syncthreads();
  return largest;
}

__device__ inline void set_fault(int32_t* fault, int value) { atomicCAS(fault, 0, value); }

// One quantised activation row in shared memory. Bytes of each 16 columns are stored transposed, so
// that word f holds columns f, f + 4, f + 8, f + 12: those that bit field f of a word of codes has.
struct RowScale {
  int32_t sum;  // of the codes
  float s;      // codes per unit
  float r;      // RMS factor of a folded norm, 1 where there is none
};

__device__ inline int code_place(int column) {
  return (column & ~15) | ((column & 3) << 2) | (column >> 2 & 3);
}

// Columns of a quantised row, rounded up to whole 16-byte loads of codes.
__host__ __device__ inline int padded_columns(int cols) { return (cols + 63) / 64 * 64; }

// Quantises a row (kernels/ops.h, QkvArgs and ProjectArgs) into `codes` [padded_columns(n)], with
// the whole block. Ends with a barrier.
__device__ inline RowScale quantise_row(const float* x, const float* gain, float eps, int n,
                                        int8_t* codes, Reduction& scratch, int32_t* fault,
                                        int layer) {
  float partial = 0.0f;
  float largest = 0.0f;
  bool finite = true;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    const float v = x[i];
    const float z = gain != nullptr ? v * gain[i] : v;
    if (gain != nullptr) partial = fmaf(v, v, partial);
    finite = finite && isfinite(z);
    largest = fmaxf(largest, fabsf(z));
  }
  finite = __syncthreads_and(finite);
  float amax = max_block(largest, scratch);
  RowScale row;
  row.sum = 0;
  row.s = 1.0f;
  row.r = 1.0f;
  if (gain != nullptr) {
    row.r = 1.0f / sqrtf(fold_block(partial, scratch) / static_cast<float>(n) + eps);
  }
  const bool zero = !finite || (gain != nullptr && amax == 0.0f);
  if (!finite && threadIdx.x == 0) set_fault(fault, layer + 1);
  if (!zero) {
    amax = fmaxf(amax, gain != nullptr ? 1e-30f : 1e-5f);
    row.s = (1.0f / amax) * 127.0f;
  }
  int sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < padded_columns(n); i += kThreads) {
    int code = 0;
    if (!zero && i < n) {
      const float z = gain != nullptr ? x[i] * gain[i] : x[i];
      code = max(-128, min(127, __float2int_rn(z * row.s)));
    }
    codes[code_place(i)] = static_cast<int8_t>(code);
    sum += code;
  }
  for (int width = 16; width >= 1; width /= 2) sum += __shfl_xor_sync(kAllLanes, sum, width);
  int* sums = reinterpret_cast<int*>(scratch.partial);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) row.sum += sums[w];
  __syncthreads();
  return row;
}

// acc + sum of the four products of unsigned bytes of `a` and signed bytes of `b`.
__device__ inline int dot_u8_s8(uint32_t a, int b, int acc) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b));
  return acc;
}

// sum of (1 - w) * x over the chunks of 64 columns that this lane takes: first, first + step, ...
//
// The stored codes 00, 01, 11 xor 01 are 1, 0, 2: 1 - w for the weight w. One logic operation with
// one of four masks leaves the four weights of a bit field in place, worth 1, 4, 16 or 64 times as
// much; the field's sum is shifted down exactly at the end.
template <int T>
__device__ inline void dot_chunks(const uint8_t* codes, int chunks, int first, int step,
                                  const int8_t* x, int x_stride, int (&sums)[T]) {
  int field[T][4] = {};
  const uint4* packed = reinterpret_cast<const uint4*>(codes);
  for (int c = first; c < chunks; c += step) {
    const uint4 words = packed[c];
    const uint32_t w[4] = {words.x ^ 0x55555555u, words.y ^ 0x55555555u, words.z ^ 0x55555555u,
                           words.w ^ 0x55555555u};
#pragma unroll
    for (int t = 0; t < T; ++t) {
      const int4* a = reinterpret_cast<const int4*>(x + t * x_stride + 64 * c);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int4 v = a[i];
        field[t][0] = dot_u8_s8(w[i] & 0x03030303u, v.x, field[t][0]);
        field[t][1] = dot_u8_s8(w[i] & 0x0c0c0c0cu, v.y, field[t][1]);
        field[t][2] = dot_u8_s8(w[i] & 0x30303030u, v.z, field[t][2]);
        field[t][3] = dot_u8_s8(w[i] & 0xc0c0c0c0u, v.w, field[t][3]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < T; ++t) {
    sums[t] = field[t][0] + (field[t][1] >> 2) + (field[t][2] >> 4) + (field[t][3] >> 6);
  }
}

}  // namespace edgellm::cuda
