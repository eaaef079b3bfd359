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

  // Starts to copy the keys, kind 0, with their units, or the values of a chunk, if there is one.
  __device__ __forceinline__ void fill(int c, int kind) const {
    fill_tiles(c, kind, [&](int i, size_t number) {
      if (kind == 0) fill_units(c, i, number);
    });
  }
  // The same of keys in two steps: where the units that a chunk takes the place of are read longer
  // than its keys are.
  __device__ __forceinline__ void fill_keys_alone(int c) const {
    fill_tiles(c, 0, [](int, size_t) {});
  }
  __device__ __forceinline__ void fill_units(int c) const {
    if (!fills(c)) return;
#pragma unroll 1
    for (int i = 0; i < tiles_of(c); ++i) fill_units(c, i, tile_number(c, i));
  }
  __device__ __forceinline__ void wait(int c, int kind) const {
    if (begin + c < end) barriers.wait(pair(c, kind));
  }

 private:
  static constexpr int kUnitBytes = sizeof(Units) / (kIntegerChunk / kAttentionChunk);

  // Calls with_tile(tile, its number) after each copy. Not unrolled: what is outside of the
  // products makes most of a kernel's code.
  template <class WithTile>
  __device__ __forceinline__ void fill_tiles(int c, int kind, const WithTile& with_tile) const {
    if (!fills(c)) return;
    const int tiles = tiles_of(c);
    const int barrier = pair(c, kind);
    if (kBulkCopies) {
      barrier_expect(barriers.arrived + barrier,
                     tiles * (tile_bytes() + (kind == 0 ? kUnitBytes : 0)));
    }
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      const size_t number = tile_number(c, i);
      const void* from = static_cast<const uint8_t*>(kind == 0 ? kv.k : kv.v) +
                         number * static_cast<size_t>(tile_bytes());
      barriers.copy(barrier, tile(c, 2 * kind + i), from, tile_bytes());
      with_tile(i, number);
    }
  }
  __device__ __forceinline__ void fill_units(int c, int i, size_t number) const {
    barriers.copy(pair(c, 0), units[c % kUnits][i], kv.units_of(number), kUnitBytes);
  }
  // Whether there is such a chunk and this thread copies.
  __device__ __forceinline__ bool fills(int c) const {
    return begin + c < end && (!kBulkCopies || threadIdx.x == 0);
  }
  __device__ __forceinline__ int tiles_of(int c) const {
    return (begin + c) * kIntegerChunk + kAttentionChunk <= last ? 2 : 1;
  }
  __device__ __forceinline__ size_t tile_number(int c, int i) const {
    return kv.tile_number(sequence, (begin + c) * kIntegerChunk + i * kAttentionChunk, kv_head);
  }
};

}  // namespace edgellm::cuda
