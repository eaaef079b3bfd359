// A chunk of a row in decode (attention_decode.cu): scores, their weights, and sums of values.
#pragma once

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/reduce.cuh"

namespace edgellm::cuda {

// The scores of the chunks from c on, those of a round, into shared.rows: warp w has the tiles w,
// w + kWarps, ... of 16 positions of each. A chunk or tile that does not exist is whatever lies
// there: none of its positions is reached.
template <class D>
__device__ __forceinline__ void score_round(const typename D::Stream& stream,
                                            const DecodeItem& item, typename D::Shared& shared,
                                            int c, int slabs) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  // Of a chunk of the round and one of its tiles of positions.
  constexpr int kParts = D::kRound * D::kScoreTiles;
  const auto chunk_of = [](int part) { return part / D::kScoreTiles; };
  const auto tile_of = [&](int part) {
    return (warp + D::kWarps * (part % D::kScoreTiles)) / (kAttentionChunk / 16);
  };
  const int first_row = warp % (kAttentionChunk / 16) * 16;
  // Upper and lower digits of the keys, each with both digits of the queries.
  int sums[kParts][D::kDigits][D::kColumns][4] = {};
  const int row = (first_row + lane % 16) * slab_row_bytes(D::kDigits) + lane / 16 * 16;
#pragma unroll
  for (int s = 0; s < D::kSlabs; ++s) {
    if (!D::kExact && s >= slabs) break;
    uint32_t a[kParts][D::kDigits][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int digit = 0; digit < D::kDigits; ++digit) {
        load_matrices(a[part][digit], stream.tile(chunk_of(part), tile_of(part)) +
                                          s * key_slab_bytes(D::kDigits) +
                                          swizzled(row + digit * kSlabDims, D::kDigits));
      }
    }
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) {
      const uint8_t* q = shared.q[8 * n + g] + 32 * s + 4 * t;
      const uint32_t b0 = *reinterpret_cast<const uint32_t*>(q);
      const uint32_t b1 = *reinterpret_cast<const uint32_t*>(q + 16);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int digit = 0; digit < D::kDigits; ++digit) {
          multiply_tile<int8_t, int8_t>(sums[part][digit][n], a[part][digit], b0, b1);
        }
      }
    }
  }
  // Columns 2 t and 2 t + 1: the digits of head t.
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int u = chunk_of(part);
    const int tile = tile_of(part);
    const float(&units)[3][kAttentionChunk] = stream.units_of(c + u)[tile];
    const int first = (item.begin + c + u) * kIntegerChunk + tile * kAttentionChunk;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int in_tile = key_position(first_row + g + 8 * i);
      const CachedUnits of{units[0][in_tile], units[1][in_tile], 0.0f};
#pragma unroll
      for (int n = 0; n < D::kColumns; ++n) {
        const int head = 4 * n + t;
        int sum = 256 * sums[part][0][n][2 * i] + sums[part][0][n][2 * i + 1];
        if (D::kDigits == 2) sum += sums[part][D::kDigits - 1][n][2 * i];
        shared.rows[head][u * D::kScoreFloats + tile * kAttentionChunk + in_tile] =
            first + in_tile <= item.position ? integer_score(sum, of, shared.factor[head])
                                             : -INFINITY;
      }
    }
  }
}

// The weights of chunk u of a round for one head, by a warp: codes into shared.weights(); returns
// their maximum and sum. `count`: positions up to the row's own.
template <class D>
__device__ __forceinline__ float2 weigh_chunk(const typename D::Stream::Units& units,
                                              typename D::Shared& shared, int u, int head,
                                              int count) {
  constexpr int kEach = kIntegerChunk / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float score[kEach];
  float per_unit[kEach];
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int j = lane + 32 * i;
    score[i] = shared.rows[head][u * D::kScoreFloats + j];
    max = fmaxf(max, score[i]);
    per_unit[i] = j < count ? units[i * 32 / kAttentionChunk][2][j % kAttentionChunk] : 0.0f;
  }
  max = ceilf(max_warp(max));
  if (D::kIsSmall) __syncwarp();  // the codes go where the scores were
  // Partial sum j mod 16 takes positions in rising order, which lie with lanes j and j + 16 in
  // turn.
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int j = lane + 32 * i;
    const float weight = integer_weight(score[i], max);
    const uint32_t code = weight_code(weight);
    shared.weights(u, 2 * head)[j] = static_cast<uint8_t>(code >> 8);
    shared.weights(u, 2 * head + 1)[j] = static_cast<uint8_t>(code);
    const float other = __shfl_xor_sync(kAllLanes, weight, 16);
    const float other_unit = __shfl_xor_sync(kAllLanes, per_unit[i], 16);
    const bool is_first = lane < 16;
    sum = fmaf(is_first ? weight : other, is_first ? per_unit[i] : other_unit, sum);
    sum = fmaf(is_first ? other : weight, is_first ? other_unit : per_unit[i], sum);
  }
#pragma unroll
  for (int width = kWeightPartials / 2; width >= 1; width /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, width);
  }
  return make_float2(max, sum);
}

// The sums of values of a round's chunks: of rows g and g + 8 of the warp's tiles of 16 dimensions,
// for head 4 n + t.
template <class D>
struct ValueSums {
  float of[D::kRound][D::kDimTiles][D::kColumns][2];

  __device__ __forceinline__ ValueSums(const typename D::Stream& stream,
                                       const typename D::Shared& shared, int slabs) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    const int slab_bytes = 32 * slabs * slab_row_bytes(D::kDigits);
#pragma unroll
    for (int i = 0; i < D::kDimTiles; ++i) {
      const int tile_of_dims = warp + D::kWarps * i;
      if (tile_of_dims >= 2 * slabs) break;  // of the warp
      const int row = (16 * tile_of_dims + lane % 16) * slab_row_bytes(D::kDigits) + lane / 16 * 16;
#pragma unroll
      for (int u = 0; u < D::kRound; ++u) {
        int sums[D::kDigits][D::kColumns][4] = {};
#pragma unroll
        for (int tile = 0; tile < kChunkTiles; ++tile) {
          uint32_t a[2][D::kDigits][4];
#pragma unroll
          for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int digit = 0; digit < D::kDigits; ++digit) {
              load_matrices(a[s][digit], stream.tile(u, 2 + tile) + s * slab_bytes +
                                             swizzled(row + digit * kSlabDims, D::kDigits));
            }
          }
#pragma unroll
          for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int n = 0; n < D::kColumns; ++n) {
              const uint8_t* p =
                  shared.weights(u, 8 * n + g) + tile * kAttentionChunk + 32 * s + 4 * t;
              const uint32_t b0 = *reinterpret_cast<const uint32_t*>(p);
              const uint32_t b1 = *reinterpret_cast<const uint32_t*>(p + 16);
#pragma unroll
              for (int digit = 0; digit < D::kDigits; ++digit) {
                multiply_tile<int8_t, uint8_t>(sums[digit][n], a[s][digit], b0, b1);
              }
            }
          }
        }
#pragma unroll
        for (int n = 0; n < D::kColumns; ++n) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            int sum = 256 * sums[0][n][2 * h] + sums[0][n][2 * h + 1];
            if (D::kDigits == 2) sum += sums[D::kDigits - 1][n][2 * h];
            of[u][i][n][h] = static_cast<float>(sum);
          }
        }
      }
    }
  }
};

}  // namespace edgellm::cuda
