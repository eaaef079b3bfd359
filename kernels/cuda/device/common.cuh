// What every kernel starts from: the usual block, faults, barriers of a part of a block.
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

__device__ inline void set_fault(int32_t* fault, int value) { atomicCAS(fault, 0, value); }

// Named barriers 1 .. 15 of a part of a block: `threads` of it, whole warps.
__device__ inline void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace edgellm::cuda
