// Device functions that the fused ops share: early starts, reductions, copies into shared memory,
// the ternary dot product.
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

// Whether a kernel can be there before its input is: time for a warm-up.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kStartsEarly = true;
#else
inline constexpr bool kStartsEarly = false;
#endif

// Lets the next kernel of the stream start as soon as there is room for it.
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// ---- Reductions
// -----------------------------------------------------------------------------------

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

// Exact, but for the sign of a zero.
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

__device__ inline void set_fault(int32_t* fault, int value) { atomicCAS(fault, 0, value); }

// ---- Barriers of a part of a block: 1 .. 15, `threads` in whole warps

__device__ inline void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- Copies into shared memory that run by themselves (compute capability 8.0 and newer)

__device__ inline void copy_async(void* shared, const void* global) {  // 16 bytes
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
#else
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}

// Closes a group of copies of this thread.
__device__ inline void end_of_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of this thread's newest groups are under way.
template <int kPending>
__device__ void wait_for_copies_but() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// Waits for this thread's groups of copies but the newest one.
__device__ inline void wait_for_older_copies() { wait_for_copies_but<1>(); }

// Waits for all copies of this thread.
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Starts to bring `bytes` (a multiple of 16, as is the address) into the L2 cache, for one thread
// to call. Every write goes there, so what an earlier kernel still writes may be asked for, too.
__device__ inline void prefetch_to_l2(const void* global, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (bytes == 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(global)),
               "r"(bytes)
               : "memory");
#endif
}

// ---- Ternary dot product
// --------------------------------------------------------------------------

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
