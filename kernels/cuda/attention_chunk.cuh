// What the attention kernels share about a chunk of keys and values: elements of the cache, sums
// over its positions, the merge of its state with those before (all of them); and how a warp scores
// kQueries queries, a lane at positions lane, lane + 32, ..., and makes their softmax weights
// (attention_prefill.cu and attention_batch.cu; attention_decode.cu shares a score among eight
// lanes).
//
// canonical_sum adds dimensions that are far apart first. Queries are stored with their dimensions
// in bit-reversed order: then its tree adds neighbours, and any aligned group of 2^n stored values
// is a subtree.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/device/reduce.cuh"

namespace edgellm::cuda {

// For heads of up to kDims dimensions: kQueries a warp, kStaged positions scored at a time.
template <int kDims_, int kQueries_, int kStaged_>
struct ChunkShape {
  static constexpr int kDims = kDims_;
  static constexpr int kQueries = kQueries_;
  static constexpr int kStaged = kStaged_;

  // Scores: positions lane, lane + 32 of what is staged.
  static constexpr int kPositions = kStaged / 32;
  static constexpr int kParts = kAttentionChunk / kStaged;
};

// An element of the cache, exactly.
__device__ inline float widened(float value) { return value; }
__device__ inline float widened(uint16_t value) { return __half2float(__ushort_as_half(value)); }

// A sum of weights with those of the next four positions, in ascending order.
__device__ __forceinline__ float add_in_order(float sum, float4 weights) {
  return (((sum + weights.x) + weights.y) + weights.z) + weights.w;
}

template <int kBits>
__device__ constexpr int reverse_bits(int value) {
  int reversed = 0;
  for (int i = 0; i < kBits; ++i) reversed |= (value >> i & 1) << (kBits - 1 - i);
  return reversed;
}
// Of a power of two.
__device__ constexpr int bits_below(int power) {
  int bits = 0;
  while (power >> bits > 1) ++bits;
  return bits;
}
template <int kDims>
__device__ constexpr int stored_index(int d) {
  return reverse_bits<bits_below(kDims)>(d);
}

// The queries that a block keeps in shared memory: of rows that are neighbours, heads of one group.
struct QueryBlock {
  int kv_head;
  int first_row;
  int rows;        // of one sequence
  int first_head;  // of the group
  int heads;
};

// Query i is row i / heads, head i % heads; absent queries and dimensions are zeros. By `threads`
// threads, to [kBlockQueries][kDims] in stored order.
template <class S>
__device__ void load_queries(const AttentionArgs& args, const QueryBlock& block, int group,
                             int threads, float* queries) {
  const int head_dim = args.kv.head_dim;
  const int count = block.rows * block.heads;
  constexpr int kFours = S::kDims / 4;
#pragma unroll 1  // once or twice a thread
  for (int i = static_cast<int>(threadIdx.x); i < S::kBlockQueries * kFours; i += threads) {
    const int query = i / kFours;
    const int d = i % kFours * 4;
    float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (query < count && d < head_dim) {
      const int row = block.first_row + query / block.heads;
      const int head = block.kv_head * group + block.first_head + query % block.heads;
      const float* from =
          args.q +
          (static_cast<size_t>(row) * static_cast<size_t>(args.heads) + static_cast<size_t>(head)) *
              static_cast<size_t>(head_dim) +
          d;
      if (head_dim % 4 == 0) {
        four = *reinterpret_cast<const float4*>(from);
      } else {
        four.x = from[0];
        if (d + 1 < head_dim) four.y = from[1];
        if (d + 2 < head_dim) four.z = from[2];
        if (d + 3 < head_dim) four.w = from[3];
      }
    }
    float* to = queries + query * S::kDims + stored_index<S::kDims>(d);
    to[0] = four.x;
    to[S::kDims / 2] = four.y;
    to[S::kDims / 4] = four.z;
    to[S::kDims / 2 + S::kDims / 4] = four.w;
  }
}

// out[q][p] = the tree over kSize stored products, from `first` of the lane's keys on, of query q
// and the key of position lane + 32 p. `keys(p, i)` is stored values i .. i + 3 of the latter.
template <class S, int kSize, class Keys>
__device__ __forceinline__ void add_products(const float* queries, const Keys& keys, int first,
                                             float (&out)[S::kQueries][S::kPositions]) {
  if constexpr (kSize == 4) {
    float4 k[S::kPositions];
#pragma unroll
    for (int p = 0; p < S::kPositions; ++p) k[p] = keys(p, first);
#pragma unroll
    for (int q = 0; q < S::kQueries; ++q) {
      const float4 a = *reinterpret_cast<const float4*>(queries + q * S::kDims + first);
#pragma unroll
      for (int p = 0; p < S::kPositions; ++p) {
        out[q][p] = (a.x * k[p].x + a.y * k[p].y) + (a.z * k[p].z + a.w * k[p].w);
      }
    }
  } else {
    float right[S::kQueries][S::kPositions];
    add_products<S, kSize / 2>(queries, keys, first, out);
    add_products<S, kSize / 2>(queries, keys, first + kSize / 2, right);
#pragma unroll
    for (int q = 0; q < S::kQueries; ++q) {
#pragma unroll
      for (int p = 0; p < S::kPositions; ++p) out[q][p] += right[q][p];
    }
  }
}

// The same over all kDims: a loop over groups of kGroup, whose sums meet as a binary counter
// counts. `keys_of(n)` gives the keys of group n.
template <class S, int kGroup, class KeysOf>
__device__ __forceinline__ void dot_products(const float* queries, const KeysOf& keys_of,
                                             float (&out)[S::kQueries][S::kPositions]) {
  constexpr int kLevels = bits_below(S::kDims / kGroup);
  float held[kLevels][S::kQueries][S::kPositions];
  // With one query there is too little to do for the other loads and sums to hide behind.
  constexpr int kUnroll = S::kQueries == 1 ? 2 : 1;
#pragma unroll kUnroll
  for (int n = 0; n < S::kDims / kGroup; ++n) {
    add_products<S, kGroup>(queries + n * kGroup, keys_of(n), 0, out);
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      const bool completes = (n >> level & 1) != 0;
#pragma unroll
      for (int q = 0; q < S::kQueries; ++q) {
#pragma unroll
        for (int p = 0; p < S::kPositions; ++p) {
          if (completes) {
            out[q][p] += held[level][q][p];
          } else {
            held[level][q][p] = out[q][p];
          }
        }
      }
      if (!completes) break;
    }
  }
}

// Makes the dot products of a chunk's positions scores and writes their softmax weights, to
// [kQueries][kWeightStride]: that of positions from the query's count on is 0. Lane i has the
// count, and gets the maximum, of query i % kQueries.
template <class S>
__device__ __forceinline__ float softmax_weights(
    float (&score)[S::kParts][S::kQueries][S::kPositions], int count, float scale, float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float max = 0.0f;
#pragma unroll
  for (int q = 0; q < S::kQueries; ++q) {
    const int query_count = __shfl_sync(kAllLanes, count, q);
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kAttentionChunk / 32; ++i) {
      float& s = score[i / S::kPositions][q][i % S::kPositions];
      s = lane + 32 * i < query_count ? (s + 0.0f) * scale : -INFINITY;
      largest = fmaxf(largest, s);
    }
    largest = max_warp(largest);
    if (lane % S::kQueries == q) max = largest;
#pragma unroll
    for (int i = 0; i < kAttentionChunk / 32; ++i) {
      weights[q * S::kWeightStride + lane + 32 * i] =
          canonical_exp(score[i / S::kPositions][q][i % S::kPositions] - largest);
    }
  }
  return max;
}

// The factors that bring the state of earlier chunks and that of the next one to their common
// maximum.
struct MergeFactors {
  float max, a, b;

  __device__ __forceinline__ MergeFactors(float earlier_max, float chunk_max)
      : max(fmaxf(earlier_max, chunk_max)),
        a(canonical_exp(earlier_max - max)),
        b(canonical_exp(chunk_max - max)) {}
};
__device__ __forceinline__ float merged(float earlier, float a, float chunk, float b) {
  return fmaf(earlier, a, chunk * b);
}

}  // namespace edgellm::cuda
