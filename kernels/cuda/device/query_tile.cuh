// Tiles of queries for attention of many rows: query i of a kv head is row i / group, head i %
// group of the heads that share it. Rows of a tile may belong to several sequences.
#pragma once

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/common.cuh"
#include "kernels/integer_attention.h"

namespace edgellm::cuda {

// Rows first .. end - 1, neighbours of one sequence; their last position.
struct RowSegment {
  int first, end;
  int sequence, last;
};

// The segment that begins with row `first`, of rows up to `end`; by a warp, all its lanes.
__device__ __forceinline__ RowSegment next_segment(const RowPlaces& places, int first, int end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RowSegment segment{first, first, places.sequence[first], -1};
  while (segment.end < end) {
    const int row = segment.end + lane;
    const bool belongs = row < end && places.sequence[row] == segment.sequence;
    const unsigned others = ~__ballot_sync(kAllLanes, belongs);
    const int count = others == 0 ? 32 : __ffs(static_cast<int>(others)) - 1;
    segment.last = max(segment.last, lane < count ? places.position[row] : -1);
    segment.end += count;
    if (count < 32) break;
  }
  for (int width = 16; width >= 1; width /= 2) {
    segment.last = max(segment.last, __shfl_xor_sync(kAllLanes, segment.last, width));
  }
  return segment;
}

// Copies the codes of queries first .. first + kQueries - 1 of a kv head to `shared`: slabs of
// kQueries rows of 64 bytes, swizzled. Queries that do not exist are zeros. By `threads` threads,
// of which this is t.
template <int kQueries>
__device__ __forceinline__ void load_queries(const CodedRows& args, int kv_head, int first, int t,
                                             int threads, uint8_t* shared) {
  const int slabs = args.kv.tile_dims() / kSlabDims;
  const int group = args.group();
  const int words = 4 * slabs;  // of 16 bytes, of a query
  for (int i = t; i < kQueries * words; i += threads) {
    const int q = i / words;
    const int word = i % words;
    const int row = (first + q) / group;
    uint4 codes = make_uint4(0, 0, 0, 0);
    if (row < args.rows) {
      const size_t query = static_cast<size_t>(row) * static_cast<size_t>(args.heads) +
                           static_cast<size_t>(kv_head * group + (first + q) % group);
      codes = reinterpret_cast<const uint4*>(
          args.queries.codes)[query * static_cast<size_t>(words) + static_cast<size_t>(word)];
    }
    *reinterpret_cast<uint4*>(shared + word / 4 * kQueries * slab_row_bytes(2) +
                              swizzled(q * slab_row_bytes(2) + word % 4 * 16, 2)) = codes;
  }
}

// The two queries of a lane: rows g and g + 8 of a warp's 16, which begin with query `first`.
struct LaneQueries {
  int first;        // the lane's first one; the other is 8 further
  float factor[2];  // of their scores

  __device__ __forceinline__ LaneQueries(const CodedRows& args, int kv_head, int first_of_warp)
      : first(first_of_warp + static_cast<int>(threadIdx.x) % 32 / 4) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      factor[h] = row(args, h) < args.rows ? args.queries.factors[index(args, kv_head, h)] : 0.0f;
    }
  }
  // At least args.rows for a query that does not exist.
  __device__ __forceinline__ int row(const CodedRows& args, int h) const {
    return (first + 8 * h) / args.group();
  }
  // Among the [rows, heads] of the pass.
  __device__ __forceinline__ size_t index(const CodedRows& args, int kv_head, int h) const {
    const int group = args.group();
    return static_cast<size_t>(row(args, h)) * static_cast<size_t>(args.heads) +
           static_cast<size_t>(kv_head * group + (first + 8 * h) % group);
  }
  // The last position that a query attends to in a segment, -1 where it is not of it.
  __device__ __forceinline__ int last(const CodedRows& args, const RowSegment& segment,
                                      int h) const {
    const int r = row(args, h);
    return r >= segment.first && r < segment.end ? args.places.position[r] : -1;
  }
};

// The last positions that a warp's queries attend to in a segment: a lane's two, the nearest and
// the farthest of all.
struct WarpReach {
  int last[2];
  int nearest, farthest;

  __device__ __forceinline__ WarpReach(const CodedRows& args, const LaneQueries& queries,
                                       const RowSegment& segment)
      : last{queries.last(args, segment, 0), queries.last(args, segment, 1)},
        nearest(min(last[0], last[1])),
        farthest(max(last[0], last[1])) {
    for (int width = 16; width >= 4; width /= 2) {
      nearest = min(nearest, __shfl_xor_sync(kAllLanes, nearest, width));
      farthest = max(farthest, __shfl_xor_sync(kAllLanes, farthest, width));
    }
  }
};

// What scores need of the units of positions first .. first + 3 of a tile.
struct FourUnits {
  CachedUnits of[4];

  __device__ __forceinline__ FourUnits(const float (&units)[3][kAttentionChunk], int first) {
    const float4 key = *reinterpret_cast<const float4*>(&units[0][first]);
    const float4 log2 = *reinterpret_cast<const float4*>(&units[1][first]);
    of[0] = {key.x, log2.x, 0.0f};
    of[1] = {key.y, log2.y, 0.0f};
    of[2] = {key.z, log2.z, 0.0f};
    of[3] = {key.w, log2.w, 0.0f};
  }
};

// The state of a lane's two queries over the chunks so far.
struct QueryState {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};
};

// Of one chunk: the factors of its merge, and what weighs its scores.
struct ChunkMerge {
  float before[2];
  float chunk[2];
  float max[2];

  // `largest`: the lane's own maxima. Lanes 4 g .. 4 g + 3 have the same queries.
  __device__ __forceinline__ ChunkMerge(float (&largest)[2], QueryState& state) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(kAllLanes, largest[h], 1));
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(kAllLanes, largest[h], 2));
      max[h] = ceilf(largest[h]);
      const float larger = fmaxf(state.max[h], max[h]);
      before[h] = power_of_two(state.max[h] - larger);
      chunk[h] = power_of_two(max[h] - larger);
      state.max[h] = larger;
    }
  }

  // Partial sums 4 t .. 4 t + 3 of the weights of a chunk.
  __device__ __forceinline__ void add(const float (&partial)[2][4], QueryState& state) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float part[4];
#pragma unroll
      for (int y = 0; y < 4; ++y) {
        part[y] = partial[h][y] + __shfl_xor_sync(kAllLanes, partial[h][y], 2);
        part[y] += __shfl_xor_sync(kAllLanes, part[y], 1);
      }
      const float total = (part[0] + part[2]) + (part[1] + part[3]);
      state.sum[h] = fmaf(total, chunk[h], state.sum[h] * before[h]);
    }
  }
};

// The upper and the lower bytes of four weight codes, as the rows of the product with the values.
struct WeightBytes {
  uint32_t high, low;

  __device__ __forceinline__ explicit WeightBytes(const uint32_t (&code)[4]) {
    const uint32_t first = __byte_perm(code[0], code[1], 0x5140);
    const uint32_t second = __byte_perm(code[2], code[3], 0x5140);
    low = __byte_perm(first, second, 0x5410);
    high = __byte_perm(first, second, 0x7632);
  }
};

// Turns the lane's sums back and writes the results: o[n][2 h + b] is dimension 8 n + 2 t + b of
// query h.
template <int kTiles>
__device__ __forceinline__ void write_queries(const CodedRows& args, int kv_head,
                                              const LaneQueries& queries, const QueryState& state,
                                              float (&o)[kTiles][4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int head_dim = args.kv.head_dim;
  const int block = turn_block(head_dim);
  if (block > 1) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float a = o[n][2 * h];
        const float b = o[n][2 * h + 1];
        o[n][2 * h] = a + b;
        o[n][2 * h + 1] = a - b;
      }
    }
  }
#pragma unroll
  for (int width = 1; width < 4; width *= 2) {
    if (2 * width >= block) break;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float other = __shfl_xor_sync(kAllLanes, o[n][i], width);
        o[n][i] = (t & width) != 0 ? other - o[n][i] : o[n][i] + other;
      }
    }
  }
#pragma unroll
  for (int width = 1; width < kTiles; width *= 2) {
    if (8 * width >= block) break;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if ((n & width) != 0 || n + width >= kTiles) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = o[n][i];
        const float b = o[n + width][i];
        o[n][i] = a + b;
        o[n + width][i] = a - b;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (queries.row(args, h) >= args.rows) continue;
    const float factor = output_factor(state.sum[h], head_dim, args.kv.type);
    float* out = args.out + queries.index(args, kv_head, h) * static_cast<size_t>(head_dim);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int d = 8 * n + 2 * t;
      if (d < head_dim) {
        *reinterpret_cast<float2*>(out + d) =
            make_float2(o[n][2 * h] * factor, o[n][2 * h + 1] * factor);
      }
    }
  }
}

}  // namespace edgellm::cuda
