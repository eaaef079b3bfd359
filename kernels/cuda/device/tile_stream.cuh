// A block's stream of tiles from the cache into shared memory: a ring of slots that are filled
// while others are read.
//
// From compute capability 9.0 on one thread asks the copy engine for a whole tile, and a barrier in
// shared memory tells its arrival. Before, all threads copy 16 bytes at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/copy.cuh"
#include "kernels/integer_sizes.h"

namespace edgellm::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kBulkCopies = true;
#else
inline constexpr bool kBulkCopies = false;
#endif

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Barriers in shared memory (PTX mbarrier) for copies of the copy engine.
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

// The slots of a block for tiles. The whole block calls every method, and waits for all that it
// fills.
struct TileSlots {
  static constexpr int kMost = 8;

  uint64_t* arrived;      // [kMost] barriers
  uint32_t parities = 0;  // of the phases that they are in

  __device__ __forceinline__ void start() const {
    if (!kBulkCopies) return;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kMost; ++i) barrier_init(arrived + i, 1);
      barriers_initialised();
    }
    __syncthreads();
  }

  // Copies `n` pieces, which belong to one slot.
  struct Piece {
    void* to;
    const void* from;
    int bytes;
  };
  template <int n>
  __device__ __forceinline__ void fill(int slot, const Piece (&pieces)[n]) const {
    if constexpr (kBulkCopies) {
      if (threadIdx.x != 0) return;
      int bytes = 0;
#pragma unroll
      for (int i = 0; i < n; ++i) bytes += pieces[i].bytes;
      barrier_expect(arrived + slot, bytes);
#pragma unroll
      for (int i = 0; i < n; ++i) {
        copy_bulk(pieces[i].to, pieces[i].from, pieces[i].bytes, arrived + slot);
      }
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        for (int at = 16 * static_cast<int>(threadIdx.x); at < pieces[i].bytes;
             at += 16 * static_cast<int>(blockDim.x)) {
          copy_async(static_cast<char*>(pieces[i].to) + at,
                     static_cast<const char*>(pieces[i].from) + at);
        }
      }
    }
  }

  __device__ __forceinline__ void wait_for_all() const {
    wait_for_copies();
    __syncthreads();
  }
  __device__ __forceinline__ void wait(int slot) {
    if constexpr (kBulkCopies) {
      barrier_wait(arrived + slot, parities >> slot & 1);
      parities ^= 1u << slot;
    } else {
      wait_for_all();
    }
  }
};

// The tiles of the chunks begin .. end - 1 of a sequence, positions 0 .. last of which exist, for
// one kv head. Chunk begin + c has tiles k = 0, 1 of keys, with their units, and 2, 3 of values.
template <int kDigits, int kUnits>
struct ChunkStream {
  using Units = float[kIntegerChunk / kAttentionChunk][3][kAttentionChunk];

  const KvCache& kv;
  TileSlots& slots;
  int n_slots;  // 4: a chunk; 8: two; 2: a chunk's keys and values in turn
  uint8_t* memory;
  Units* units;  // [kUnits] of chunks c % kUnits
  int sequence, kv_head, begin, end, last;

  __device__ __forceinline__ int tile_bytes() const {
    return code_tile_bytes(kv.tile_dims(), kDigits);
  }
  __device__ __forceinline__ int slot(int c, int k) const { return (4 * c + k) & (n_slots - 1); }
  __device__ __forceinline__ uint8_t* tile(int c, int k) const {
    return memory + slot(c, k) * tile_bytes();
  }
  __device__ __forceinline__ const Units& units_of(int c) const { return units[c % kUnits]; }
  __device__ __forceinline__ bool has_tile(int c, int tile) const {
    return begin + c < end && (begin + c) * kIntegerChunk + tile * kAttentionChunk <= last;
  }

  // Starts to copy tile k, if there is one.
  __device__ __forceinline__ void fill(int c, int k) const {
    if (!has_tile(c, k % 2)) return;
    const size_t number =
        kv.tile_number(sequence, (begin + c) * kIntegerChunk + k % 2 * kAttentionChunk, kv_head);
    const void* from = static_cast<const uint8_t*>(k < 2 ? kv.k : kv.v) +
                       number * static_cast<size_t>(tile_bytes());
    if (k < 2) {
      slots.fill<2>(slot(c, k), {{tile(c, k), from, tile_bytes()},
                                 {units[c % kUnits][k], kv.units_of(number),
                                  static_cast<int>(sizeof units[0][0])}});
    } else {
      slots.fill<1>(slot(c, k), {{tile(c, k), from, tile_bytes()}});
    }
  }
  __device__ __forceinline__ void fill_keys(int c) const {
    fill(c, 0);
    fill(c, 1);
  }
  __device__ __forceinline__ void fill_values(int c) const {
    fill(c, 2);
    fill(c, 3);
  }
  // Both tiles of keys, k = 0, or of values, k = 2.
  __device__ __forceinline__ void wait(int c, int k) const {
    if (has_tile(c, 0)) slots.wait(slot(c, k));
    if (has_tile(c, 1)) slots.wait(slot(c, k + 1));
  }
};

}  // namespace edgellm::cuda
