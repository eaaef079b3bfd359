// Barriers in shared memory (PTX mbarrier) and copies of the copy engine that they wait for, from
// compute capability 9.0 on. Before, everything here is empty.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace edgellm::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kBulkCopies = true;
#else
inline constexpr bool kBulkCopies = false;
#endif

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
#endif
}
// After barrier_init, before the copy engine meets the barriers.
__device__ __forceinline__ void barriers_initialised() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Arrives, and makes the phase wait for `bytes` of copies as well.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive_at(uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}
// Makes this thread's writes to shared and global memory visible to the copy engine.
__device__ __forceinline__ void all_writes_visible_to_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
// Makes this thread's writes to shared memory visible to the copy engine and to wgmma.
__device__ __forceinline__ void writes_visible_to_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Waits for the end of a phase, by the parity of its number.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}
__device__ __forceinline__ void first_phase_ended(uint64_t* barrier) { barrier_wait(barrier, 0); }
// One thread: `bytes`, a multiple of 16, as are both addresses.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, int bytes,
                                          uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#endif
}

}  // namespace edgellm::cuda
