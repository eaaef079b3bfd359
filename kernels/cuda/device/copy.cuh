// Copies from global to shared memory in the background, and prefetches into the L2 cache.
//
// Before compute capability 8.0 a copy is a plain load and store: it has ended when the call
// returns.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace edgellm::cuda {

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

// The same, but zeros where `valid` is false.
__device__ inline void copy_async_or_zero(void* shared, const void* global, bool valid) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
#else
  *static_cast<uint4*>(shared) =
      valid ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
#endif
}

// Closes a group of copies of this thread.
__device__ inline void end_of_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kPending of this thread's groups of copies, the newest, have not ended.
template <int kPending>
__device__ void wait_for_copies_but() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// Waits for this thread's groups of copies except the newest one.
__device__ inline void wait_for_older_copies() { wait_for_copies_but<1>(); }

// Waits for all copies of this thread.
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Starts to bring `bytes` (a multiple of 16, as is the address) into the L2 cache; one thread calls
// it. Every write goes to that cache, so the bytes may be some that an earlier kernel still writes.
__device__ inline void prefetch_to_l2(const void* global, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (bytes == 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(global)),
               "r"(bytes)
               : "memory");
#endif
}

}  // namespace edgellm::cuda
