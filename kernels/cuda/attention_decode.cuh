// What the parts of attention over codes in decode share (attention_decode.cu): how a block is cut,
// its shared memory, and what it does.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/tile_stream.cuh"
#include "kernels/integer_attention.h"

namespace edgellm::cuda {

inline constexpr int kChunkTiles = kIntegerChunk / kAttentionChunk;
inline constexpr int kWeightPitch = kIntegerChunk + 16;  // bytes: rows in other banks

// The states of chunks that blocks leave to each other.
struct ChunkStates {
  float* states;  // [row, head, max_chunks, size]: sums [head_dim], maximum, sum of weights
  int32_t* done;  // [row, kv head, head tile] blocks that have ended
  int max_chunks;
  int size;

  __device__ __forceinline__ float* of(int row, int heads, int head, int chunk) const {
    return states +
           ((static_cast<size_t>(row) * static_cast<size_t>(heads) + static_cast<size_t>(head)) *
                static_cast<size_t>(max_chunks) +
            static_cast<size_t>(chunk)) *
               static_cast<size_t>(size);
  }
};

// kColumns: columns of a product in eights, each two digits of four heads. kRound: chunks that a
// block works on at once. kWarps: of a block, kDecodeWarps or kFewDecodeWarps. kSent: where
// the blocks of a cluster share a context, the chunks that others than the first have, at most.
template <int kSlabs_, int kDigits_, int kColumns_, int kRound_, int kWarps_, int kSent_>
struct Decode {
  static constexpr int kSlabs = kSlabs_;
  static constexpr int kDigits = kDigits_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kRound = kRound_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kSent = kSent_;
  static constexpr bool kInCluster = kSent > 0;
  static constexpr int kThreads = 32 * kWarps;
  // Small blocks are many on an SM, so each has to do with little shared memory.
  static constexpr bool kIsSmall = kWarps == kFewDecodeWarps;
  static_assert(!kIsSmall || (kRound_ == 1 && kColumns_ == 1));
  static constexpr int kDims = 32 * kSlabs;
  // Heads of up to 128 dimensions have an instance for each number of slabs.
  static constexpr bool kExact = kSlabs <= 4;
  static constexpr int kUnits = kIsSmall ? kRound : 2 * kRound;  // of chunks, at once
  using Stream = ChunkStream<kDigits, kUnits, kExact ? kDims : 0>;
  static constexpr int kHeads = 4 * kColumns;
  static_assert(kRound * kHeads <= kWarps, "a warp weighs the chunk of one head");
  // Tiles of 16 positions of a chunk that a warp scores.
  static constexpr int kScoreTiles = kIntegerChunk / 16 / kWarps;
  static constexpr int kQueryPitch = kDims + 16;          // bytes: rows in other banks
  static constexpr int kScoreFloats = kIntegerChunk + 4;  // of a chunk
  static constexpr int kRowFloats =
      kDims + 4 > kRound* kScoreFloats ? kDims + 4 : kRound* kScoreFloats;
  // Tiles of 16 dimensions that a warp has.
  static constexpr int kDimTiles = (2 * kSlabs + kWarps - 1) / kWarps;
  static_assert(!kInCluster ||
                (kExact && kRound == 1 && kColumns == 1 && kDimTiles == 1 && !kIsSmall));

  // What the first block of a cluster gets from the others, of each of their chunks: maxima and
  // sums of the weights, and the sums of values that its lanes have of the same dimensions and
  // heads.
  struct SentChunks {
    Inbox inbox;
    float2 state[kSent][kHeads];
    float2 values[kSent][kThreads];

    __device__ __forceinline__ static int bytes(int chunks, int heads) {
      return chunks * (heads + 2 * kSlabs * 32) * static_cast<int>(sizeof(float2));
    }
  };
  struct Nothing {};

  // Behind the slots of the stream.
  struct Shared {
    alignas(16) typename Stream::Units units[kUnits];
    alignas(16) uint8_t q[2 * kHeads][kQueryPitch];  // column 2 h + digit
    // Of the weights of a chunk, column 2 h + digit; in a small block they lie over the scores.
    alignas(16) uint8_t p[kIsSmall ? 1 : kRound][kIsSmall ? 1 : 2 * kHeads][kWeightPitch];
    // Scores of a round, in a small block then the digits of their weights; in the end the merged
    // sums.
    alignas(16) float rows[kHeads][kRowFloats];
    float factor[kHeads];          // of the scores
    float2 state[kRound][kHeads];  // of chunks: maximum, sum of the weights
    float sum[kHeads];             // of all weights
    int ticket;
    alignas(8) uint64_t arrived[TileBarriers::kMost];
    std::conditional_t<kInCluster, SentChunks, Nothing> sent;

    __device__ __forceinline__ uint8_t* weights(int u, int column) {
      if constexpr (kIsSmall) {
        return reinterpret_cast<uint8_t*>(rows[column / 2]) + column % 2 * kSecondDigits;
      } else {
        return p[u][column];
      }
    }
    __device__ __forceinline__ const uint8_t* weights(int u, int column) const {
      return const_cast<Shared*>(this)->weights(u, column);
    }
  };
  // Bytes from a weight's upper digit to its lower one: all columns start in different banks.
  static constexpr int kSecondDigits = 320;
  static_assert(kSecondDigits + kIntegerChunk <= 4 * kScoreFloats);
};

// What a block does: chunks begin .. end - 1 of the row's.
struct DecodeItem {
  int row, kv_head, first_head, heads;
  int sequence, position, chunks;
  int workers, begin, end;

  // Where the chunks of the first worker end.
  __device__ __forceinline__ int first_end() const { return chunks / workers; }
};

}  // namespace edgellm::cuda
