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

// ---- Programmatic dependent launch (compute capability 9.0 and newer)
// -----------------------------
//
// A kernel may start while the one before it in the stream still runs. Until it has called
// wait_for_previous() it must neither read what an earlier kernel writes nor write anything: it may
// fetch weights. That call returns when all earlier kernels of the stream have finished and their
// writes are visible, because each of them has waited in the same way.

__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Lets the next kernel of the stream start as soon as there is room for it.
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// ---- Reductions
// -----------------------------------------------------------------------------------

// Working memory of quantise_row() and rms_factor().
struct Reduction {
  float partial[kPartials];
  float max[kWarps];
  int sum[kWarps];
};

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

__device__ inline float max_warp(float value) {
  for (int width = 16; width >= 1; width /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, width));
  }
  return value;
}

__device__ inline float rms_factor(float sum_of_squares, int n, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(n) + eps);
}

__device__ inline void set_fault(int32_t* fault, int value) { atomicCAS(fault, 0, value); }

// ---- Quantised activation rows
// --------------------------------------------------------------------

struct RowScale {
  int32_t sum;  // of the codes
  float s;      // codes per unit
  float r;      // RMS factor of a folded norm, 1 where there is none
};

// Columns of a quantised row, rounded up to whole 16-byte loads of weights.
__host__ __device__ inline int padded_columns(int cols) { return (cols + 63) / 64 * 64; }

// Where a column's code lies in a row of `chunks` chunks of 64 columns: the four 16-byte quarters
// of all chunks one after the other, so that lanes on neighbouring chunks read neighbouring banks.
// In a quarter word f holds columns f, f + 4, f + 8, f + 12: those of bit field f of a word of
// weights.
__device__ inline int code_place(int column, int chunks) {
  const int quarter = column >> 4 & 3;
  const int within = (column & 3) << 2 | (column >> 2 & 3);
  return (quarter * chunks + (column >> 6)) * 16 + within;
}

// Quantises a row (kernels/ops.h, QkvArgs and ProjectArgs) into `codes` [padded_columns(n)], with
// the whole block. Ends with a barrier.
__device__ inline RowScale quantise_row(const float* x, const float* gain, float eps, int n,
                                        int8_t* codes, Reduction& scratch, int32_t* fault,
                                        int layer) {
  // Values that a thread keeps between the two passes: rows of up to 3072 columns are read once.
  constexpr int kKept = 12;
  const int t = static_cast<int>(threadIdx.x);
  float kept[kKept];
  float partial = 0.0f;
  float largest = 0.0f;
  bool finite = true;
  const auto measure = [&](int i) {
    const float v = x[i];
    float z = v;
    if (gain != nullptr) {
      z = v * gain[i];
      partial = fmaf(v, v, partial);
    }
    finite = finite && isfinite(z);
    largest = fmaxf(largest, fabsf(z));
    return z;
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int i = t + j * kThreads;
    kept[j] = i < n ? measure(i) : 0.0f;
  }
#pragma unroll 8
  for (int i = t + kKept * kThreads; i < n; i += kThreads) measure(i);

  // A value that is not finite travels as an infinite maximum.
  largest = max_warp(finite ? largest : INFINITY);
  if (t % 32 == 0) scratch.max[t / 32] = largest;
  scratch.partial[t] = partial;
  __syncthreads();
  float amax = scratch.max[0];
  for (int w = 1; w < kWarps; ++w) amax = fmaxf(amax, scratch.max[w]);
  RowScale row{0, 1.0f, 1.0f};
  if (gain != nullptr) row.r = rms_factor(fold_partials(scratch.partial), n, eps);
  finite = isfinite(amax);
  if (!finite && t == 0) set_fault(fault, layer + 1);
  const bool zero = !finite || (gain != nullptr && amax == 0.0f);
  if (!zero) row.s = (1.0f / fmaxf(amax, gain != nullptr ? 1e-30f : 1e-5f)) * 127.0f;

  const int padded = padded_columns(n);
  int sum = 0;
  const auto write = [&](int i, float z) {
    const int code = zero ? 0 : max(-128, min(127, __float2int_rn(z * row.s)));
    codes[code_place(i, padded / 64)] = static_cast<int8_t>(code);
    sum += code;
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int i = t + j * kThreads;
    if (i < padded) write(i, kept[j]);
  }
#pragma unroll 8
  for (int i = t + kKept * kThreads; i < padded; i += kThreads) {
    write(i, i >= n ? 0.0f : gain != nullptr ? x[i] * gain[i] : x[i]);
  }
  for (int width = 16; width >= 1; width /= 2) sum += __shfl_xor_sync(kAllLanes, sum, width);
  if (t % 32 == 0) scratch.sum[t / 32] = sum;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) row.sum += scratch.sum[w];
  return row;
}

// ---- Ternary dot product
// --------------------------------------------------------------------------

// acc + sum of the four products of unsigned bytes of `a` and signed bytes of `b`.
__device__ inline int dot_u8_s8(uint32_t a, int b, int acc) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b));
  return acc;
}

// 16 bytes of codes, 64 weights, with the codes of T activation rows.
//
// The stored codes 00, 01, 11 xor 01 are 1, 0, 2: 1 - w for the weight w. One logic operation with
// one of four masks leaves the four weights of a bit field in place, worth 1, 4, 16 or 64 times as
// much; finish() shifts the field's sum down, exactly.
template <int T>
struct TernaryDot {
  int field[T][4] = {};

  // `x`: quantised rows of `chunks` chunks (code_place()); `chunk`: the one the weights belong to.
  __device__ void add(uint4 codes, const int8_t* x, int chunk, int chunks) {
    const uint32_t w[4] = {codes.x ^ 0x55555555u, codes.y ^ 0x55555555u, codes.z ^ 0x55555555u,
                           codes.w ^ 0x55555555u};
#pragma unroll
    for (int t = 0; t < T; ++t) {
      const int4* a = reinterpret_cast<const int4*>(x) + 4 * t * chunks + chunk;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int4 v = a[i * chunks];
        field[t][0] = dot_u8_s8(w[i] & 0x03030303u, v.x, field[t][0]);
        field[t][1] = dot_u8_s8(w[i] & 0x0c0c0c0cu, v.y, field[t][1]);
        field[t][2] = dot_u8_s8(w[i] & 0x30303030u, v.z, field[t][2]);
        field[t][3] = dot_u8_s8(w[i] & 0xc0c0c0c0u, v.w, field[t][3]);
      }
    }
  }

  // sum of (1 - w) * x for activation row t.
  __device__ int finish(int t) const {
    return field[t][0] + (field[t][1] >> 2) + (field[t][2] >> 4) + (field[t][3] >> 6);
  }
};

}  // namespace edgellm::cuda
