// A block's stream of tiles from the cache into shared memory: a ring of slots that are filled
// while others are read.
//
// From compute capability 9.0 on one thread asks the copy engine for a whole tile, and a barrier in
// shared memory tells its arrival. Before, all threads copy 16 bytes at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/bulk.cuh"
#include "kernels/cuda/device/copy.cuh"
#include "kernels/integer_sizes.h"

namespace edgellm::cuda {

// The barriers of a block for tiles, one for each pair of slots: the keys, or the values, of a
// chunk. The whole block calls start() and wait().
struct TileBarriers {
  static constexpr int kMost = 4;

  uint64_t* arrived;      // [kMost]
  uint32_t parities = 0;  // of the phases that they are in

  __device__ __forceinline__ void start() const {
    if (!kBulkCopies) return;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kMost; ++i) barrier_init(arrived + i, 1);
      barriers_initialised();
    }
    __syncthreads();
  }

  // Called by thread 0 alone where the copy engine copies (kBulkCopies), else by all threads.
  __device__ __forceinline__ void copy(int pair, void* to, const void* from, int bytes) const {
    if constexpr (kBulkCopies) {
      copy_bulk(to, from, bytes, arrived + pair);
    } else {
      for (int at = 16 * static_cast<int>(threadIdx.x); at < bytes;
           at += 16 * static_cast<int>(blockDim.x)) {
        copy_async(static_cast<char*>(to) + at, static_cast<const char*>(from) + at);
      }
    }
  }

  __device__ __forceinline__ void wait_for_all() const {
    wait_for_copies();
    __syncthreads();
  }
  __device__ __forceinline__ void wait(int pair) {
    if constexpr (kBulkCopies) {
      barrier_wait(arrived + pair, parities >> pair & 1);
      parities ^= 1u << pair;
    } else {
      wait_for_all();
    }
  }
};

// The tiles of the chunks begin .. end - 1 of a sequence, positions 0 .. last of which exist, for
// one kv head. Chunk begin + c has tiles k = 0, 1 of keys, with their units, and 2, 3 of values.
// kDims: of a tile, 0 where the kernel does not know them.
template <int kDigits, int kUnits, int kDims = 0>
struct ChunkStream {
  using Units = float[kIntegerChunk / kAttentionChunk][3][kAttentionChunk];

  const KvCache& kv;
  TileBarriers& barriers;
  int n_slots;  // 4: a chunk; 8: two; 2: a chunk's keys and values in turn
  uint8_t* memory;
  Units* units;  // [kUnits] of chunks c % kUnits
  int sequence, kv_head, begin, end, last;

  __device__ __forceinline__ int tile_bytes() const {
    return code_tile_bytes(kDims > 0 ? kDims : kv.tile_dims(), kDigits);
  }
  __device__ __forceinline__ uint8_t* tile(int c, int k) const {
    return memory + ((4 * c + k) & (n_slots - 1)) * tile_bytes();
  }
  // The barrier of a chunk's keys, kind 0, or values, kind 1.
  __device__ __forceinline__ int pair(int c, int kind) const {
    return (2 * c + kind) & (n_slots / 2 - 1);
  }
  __device__ __forceinline__ const Units& units_of(int c) const { return units[c % kUnits]; }
  __device__ __forceinline__ bool has_tile(int c, int tile) const {
    return begin + c < end && (begin + c) * kIntegerChunk + tile * kAttentionChunk <= last;
  }

  // Starts to copy the keys or the values of a chunk, if there is one. Not unrolled: what is
  // outside of the products makes most of a kernel's code.
  __device__ __forceinline__ void fill(int c, int kind) const {
    if (begin + c >= end || (kBulkCopies && threadIdx.x != 0)) return;
    const int first = (begin + c) * kIntegerChunk;
    const int tiles = first + kAttentionChunk <= last ? 2 : 1;
    const int unit_bytes = static_cast<int>(sizeof units[0][0]);
    const int barrier = pair(c, kind);
    if (kBulkCopies) {
      barrier_expect(barriers.arrived + barrier,
                     tiles * (tile_bytes() + (kind == 0 ? unit_bytes : 0)));
    }
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      const size_t number = kv.tile_number(sequence, first + i * kAttentionChunk, kv_head);
      const void* from = static_cast<const uint8_t*>(kind == 0 ? kv.k : kv.v) +
                         number * static_cast<size_t>(tile_bytes());
      barriers.copy(barrier, tile(c, 2 * kind + i), from, tile_bytes());
      if (kind == 0) {
        barriers.copy(barrier, units[c % kUnits][i], kv.units_of(number), unit_bytes);
      }
    }
  }
  __device__ __forceinline__ void wait(int c, int kind) const {
    if (begin + c < end) barriers.wait(pair(c, kind));
  }
};

}  // namespace edgellm::cuda
