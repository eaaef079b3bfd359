// Clusters of blocks (compute capability 9.0 and newer), and how their blocks send to each other.
// Before that everything here is empty: no kernel that uses it is launched.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/device/bulk.cuh"

namespace edgellm::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define EDGELLM_HAS_CLUSTERS 1
#endif

__device__ inline int cluster_rank() {
  int rank = 0;
#ifdef EDGELLM_HAS_CLUSTERS
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// A barrier of all threads of the cluster, in two halves.
__device__ inline void cluster_arrive() {
#ifdef EDGELLM_HAS_CLUSTERS
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#ifdef EDGELLM_HAS_CLUSTERS
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// The value that block `rank` of the cluster has where `here` is in this one: 4 or 8 bytes of
// shared memory.
template <class T>
__device__ inline T look_in_block(int rank, const T* here) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  T value = *here;
#ifdef EDGELLM_HAS_CLUSTERS
  uint32_t there = 0;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(shared_address(here)), "r"(rank));
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
  } else {
    asm volatile("ld.shared::cluster.b64 %0, [%1];" : "=l"(value) : "r"(there) : "memory");
  }
#endif
  return value;
}

// What the blocks of the cluster send once into this block's shared memory. A store counts itself
// where it arrives, so a reader waits for the data and nothing else. (A barrier of the cluster also
// takes a fence of the whole GPU, a microsecond.)
class Inbox {
 public:
  // By one thread, before the cluster meets. `bytes`: all that will arrive.
  __device__ void init(int bytes) {
    open();
    expect(bytes);
  }
  // The same in two steps: open() before the cluster meets, expect() at any time before wait(). The
  // compiler may make open() an instruction of the whole warp; racecheck then warns of expect(),
  // unless a barrier of the block lies between them.
  __device__ void open() {
#ifdef EDGELLM_HAS_CLUSTERS
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier_))
                 : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __device__ void expect(int bytes) {
#ifdef EDGELLM_HAS_CLUSTERS
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier_)),
        "r"(bytes)
        : "memory");
#endif
  }
  // Until all is there.
  __device__ void wait() {
#ifdef EDGELLM_HAS_CLUSTERS
    uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
          "selp.u32 %0, 1, 0, p;\n"
          "}"
          : "=r"(done)
          : "r"(shared_address(&barrier_))
          : "memory");
    }
#endif
  }
  // Stores into block `rank`, at the place that `here` is in this block.
  template <class T>
  __device__ void send(int rank, T* here, T value) {
#ifdef EDGELLM_HAS_CLUSTERS
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof value);
    if constexpr (sizeof(T) == 4) {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
              in_block(rank, here)),
          "r"(words[0]), "r"(in_block(rank, &barrier_))
          : "memory");
    } else if constexpr (sizeof(T) == 8) {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
              "r"(in_block(rank, here)),
          "r"(words[0]), "r"(words[1]), "r"(in_block(rank, &barrier_))
          : "memory");
    } else {
      static_assert(sizeof(T) == 16);
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
          "[%5];" ::"r"(in_block(rank, here)),
          "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(in_block(rank, &barrier_))
          : "memory");
    }
#endif
  }

 private:
#ifdef EDGELLM_HAS_CLUSTERS
  __device__ static uint32_t in_block(int rank, const void* here) {
    uint32_t there = 0;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"(shared_address(here)), "r"(rank));
    return there;
  }
#endif

  uint64_t barrier_;
};

#undef EDGELLM_HAS_CLUSTERS

}  // namespace edgellm::cuda
