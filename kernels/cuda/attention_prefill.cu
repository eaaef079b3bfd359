// Attention over codes of many rows of a sequence (prefill), on tensor cores of any kind: a warp
// has sixteen queries, as in FlashAttention-2 (arXiv 2307.08691), and every sum is an exact integer
// (docs/numerics.md, "Attention in integers"). attention_wgmma.cu does the same on compute
// capability 9.0, several times as fast.
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/query_tile.cuh"
#include "kernels/cuda/device/tile_stream.cuh"
#include "kernels/integer_attention.h"

namespace edgellm::cuda {
namespace {

constexpr int kChunkTiles = kIntegerChunk / kAttentionChunk;
constexpr int kKeyTiles = kAttentionChunk / 8;     // of eight keys, in a tile of the cache
constexpr int kWeightGroups = kIntegerChunk / 16;  // four neighbouring positions a lane each

template <int kSlabs_, int kDigits_>
struct Prefill {
  static constexpr int kSlabs = kSlabs_;
  static constexpr int kDigits = kDigits_;
  static constexpr int kDimTiles = 4 * kSlabs;  // of eight dimensions
  static constexpr int kQueries = prefill_queries(32 * kSlabs);
  static constexpr int kThreads = kQueries / 16 * 32;
  static constexpr int kQuerySlab = kQueries * slab_row_bytes(2);
  using Stream = ChunkStream<kDigits, 2>;

  // Behind the queries and the slots of the stream.
  struct Shared {
    alignas(16) typename Stream::Units units[2];
    alignas(8) uint64_t arrived[TileBarriers::kMost];
  };
};

// Rows of eight of a slab as columns of a product: with two digits the upper and the lower ones of
// eight rows, with one digit those of sixteen. b[i]: k 0 .. 15 and 16 .. 31 of each.
template <int kDigits>
__device__ __forceinline__ void load_columns(uint32_t (&b)[4], const uint8_t* slab, int first_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = kDigits == 2 ? first_row + lane % 8 : first_row + lane / 16 * 8 + lane % 8;
  const int byte = kDigits == 2 ? lane / 8 * 16 : lane / 8 % 2 * 16;
  load_matrices(b, slab + swizzled(row * slab_row_bytes(kDigits) + byte, kDigits));
}

// Scores of a tile of keys: score[n][i] as the product leaves them.
template <class P>
__device__ __forceinline__ void score_tile(const uint8_t* queries, const uint8_t* keys,
                                           const float (&units)[3][kAttentionChunk],
                                           const LaneQueries& lane_queries, int slabs,
                                           float (&score)[kKeyTiles][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int t = lane % 4;
  int high[kKeyTiles][4] = {};
  int middle[kKeyTiles][4] = {};
  const int at = (16 * warp + lane % 16) * slab_row_bytes(2) + lane / 16 * 16;  // of ldmatrix
#pragma unroll
  for (int s = 0; s < P::kSlabs; ++s) {
    if (s >= slabs) break;
    uint32_t upper[4];
    uint32_t lower[4];
    load_matrices(upper, queries + s * P::kQuerySlab + swizzled(at, 2));
    load_matrices(lower, queries + s * P::kQuerySlab + swizzled(at + kSlabDims, 2));
    const uint8_t* slab = keys + s * key_slab_bytes(P::kDigits);
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += P::kDigits == 2 ? 1 : 2) {
      uint32_t b[4];
      load_columns<P::kDigits>(b, slab, 8 * n);
      multiply_tile<int8_t, int8_t>(high[n], upper, b[0], b[1]);
      multiply_tile<int8_t, int8_t>(middle[n], lower, b[0], b[1]);
      if constexpr (P::kDigits == 2) {
        multiply_tile<int8_t, int8_t>(middle[n], upper, b[2], b[3]);
      } else {
        multiply_tile<int8_t, int8_t>(high[n + 1], upper, b[2], b[3]);
        multiply_tile<int8_t, int8_t>(middle[n + 1], lower, b[2], b[3]);
      }
    }
  }
  // Columns 2 t, 2 t + 1 of two tiles are the keys of positions 4 t .. 4 t + 3 (code_tile.h).
#pragma unroll
  for (int group = 0; group < kKeyTiles / 2; ++group) {
    const FourUnits four(units, 16 * group + 4 * t);
#pragma unroll
    for (int y = 0; y < 4; ++y) {
      const int n = 2 * group + y / 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = 2 * h + y % 2;
        score[n][i] =
            integer_score(256 * high[n][i] + middle[n][i], four.of[y], lane_queries.factor[h]);
      }
    }
  }
}

// Scores of positions behind a query's last one become -infinity. `first`: the tile's position.
__device__ __forceinline__ void mask_tile(float (&score)[kKeyTiles][4], int first,
                                          const int (&last)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = first + n / 2 * 16 + 4 * t + n % 2 * 2 + i % 2;
      if (position > last[i / 2]) score[n][i] = -INFINITY;
    }
  }
}

// Adds the weighted values of a chunk to the sums.
template <class P>
__device__ __forceinline__ void add_values(const typename P::Stream& stream, int c, int slabs,
                                           const uint32_t (&high_bytes)[kWeightGroups][2],
                                           const uint32_t (&low_bytes)[kWeightGroups][2],
                                           const ChunkMerge& merge, float (&o)[P::kDimTiles][4]) {
  constexpr int kAtOnce = P::kDigits == 2 ? 1 : 2;
#pragma unroll
  for (int n = 0; n < P::kDimTiles; n += kAtOnce) {
    if (n >= 4 * slabs) break;
    int high[kAtOnce][4] = {};
    int middle[kAtOnce][4] = {};
#pragma unroll
    for (int step = 0; step < kIntegerChunk / kSlabDims; ++step) {
      const int tile = step / 2;
      if (!stream.has_tile(c, tile)) break;
      const uint8_t* slab =
          stream.tile(c, 2 + tile) + step % 2 * 32 * slabs * slab_row_bytes(P::kDigits);
      uint32_t b[4];
      load_columns<P::kDigits>(b, slab, 8 * n);
      const uint32_t upper[4] = {high_bytes[2 * step][0], high_bytes[2 * step][1],
                                 high_bytes[2 * step + 1][0], high_bytes[2 * step + 1][1]};
      const uint32_t lower[4] = {low_bytes[2 * step][0], low_bytes[2 * step][1],
                                 low_bytes[2 * step + 1][0], low_bytes[2 * step + 1][1]};
      multiply_tile<uint8_t, int8_t>(high[0], upper, b[0], b[1]);
      multiply_tile<uint8_t, int8_t>(middle[0], lower, b[0], b[1]);
      if constexpr (P::kDigits == 2) {
        multiply_tile<uint8_t, int8_t>(middle[0], upper, b[2], b[3]);
      } else {
        multiply_tile<uint8_t, int8_t>(high[1], upper, b[2], b[3]);
        multiply_tile<uint8_t, int8_t>(middle[1], lower, b[2], b[3]);
      }
    }
#pragma unroll
    for (int m = 0; m < kAtOnce; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        o[n + m][i] = fmaf(static_cast<float>(256 * high[m][i] + middle[m][i]), merge.chunk[i / 2],
                           o[n + m][i] * merge.before[i / 2]);
      }
    }
  }
}

// The queries from `first` on of a kv head. `memory`: queries, slots, P::Shared.
template <class P>
__device__ __forceinline__ void attend(const CodedRows& args, int kv_head, int first, int slots,
                                       uint8_t* memory) {
  const int slabs = args.kv.tile_dims() / kSlabDims;
  const int query_bytes = P::kQueries * query_code_bytes(32 * slabs);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int t = static_cast<int>(threadIdx.x) % 4;
  uint8_t* const tiles_memory = memory + query_bytes;
  auto& shared = *reinterpret_cast<typename P::Shared*>(
      tiles_memory + slots * code_tile_bytes(32 * slabs, P::kDigits));
  TileBarriers barriers{shared.arrived};
  barriers.start();
  load_queries<P::kQueries>(args, kv_head, first, static_cast<int>(threadIdx.x), P::kThreads,
                            memory);
  const LaneQueries queries(args, kv_head, first + 16 * warp);
  __syncthreads();

  QueryState state;
  float o[P::kDimTiles][4] = {};
  const int end_row = min((first + P::kQueries - 1) / args.group() + 1, args.rows);
  RowSegment segment{};
#pragma unroll 1
  for (int row = first / args.group(); row < end_row; row = segment.end) {
    segment = next_segment(args.places, row, end_row);
    const WarpReach reach(args, queries, segment);
    typename P::Stream stream{args.kv,
                              barriers,
                              slots,
                              tiles_memory,
                              shared.units,
                              segment.sequence,
                              kv_head,
                              0,
                              segment.last / kIntegerChunk + 1,
                              segment.last};
    stream.fill(0, 0);
    if (slots == 4) stream.fill(0, 1);
#pragma unroll 1
    for (int c = 0; c < stream.end; ++c) {
      const bool reaches = c * kIntegerChunk <= reach.farthest;
      float score[kChunkTiles][kKeyTiles][4];
      stream.wait(c, 0);
#pragma unroll
      for (int tile = 0; tile < kChunkTiles; ++tile) {
        const int position = c * kIntegerChunk + tile * kAttentionChunk;
        if (reaches && stream.has_tile(c, tile)) {
          score_tile<P>(memory, stream.tile(c, tile), stream.units_of(c)[tile], queries, slabs,
                        score[tile]);
          if (position + kAttentionChunk - 1 > reach.nearest)
            mask_tile(score[tile], position, reach.last);
        } else {
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) score[tile][n][i] = -INFINITY;
          }
        }
      }
      __syncthreads();
      // Where the keys were.
      if (slots == 4) {
        stream.fill(c + 1, 0);
      } else {
        stream.fill(c, 1);
      }

      float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int tile = 0; tile < kChunkTiles; ++tile) {
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            largest[i / 2] = fmaxf(largest[i / 2], score[tile][n][i]);
          }
        }
      }
      const ChunkMerge merge(largest, state);
      uint32_t high_bytes[kWeightGroups][2];
      uint32_t low_bytes[kWeightGroups][2];
      float partial[2][4] = {};
#pragma unroll
      for (int group = 0; group < kWeightGroups; ++group) {
        const int tile = group / (kWeightGroups / kChunkTiles);
        const int n = 2 * (group % (kWeightGroups / kChunkTiles));
        float4 per_unit = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (stream.has_tile(c, tile)) {
          per_unit = *reinterpret_cast<const float4*>(&stream.units_of(c)[tile][2][8 * n + 4 * t]);
        }
        const float unit[4] = {per_unit.x, per_unit.y, per_unit.z, per_unit.w};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t code[4];
#pragma unroll
          for (int y = 0; y < 4; ++y) {
            const float weight =
                integer_weight(score[tile][n + y / 2][2 * h + y % 2], merge.max[h]);
            partial[h][y] = fmaf(weight, unit[y], partial[h][y]);
            code[y] = weight_bits(weight);
          }
          const WeightBytes bytes(code);
          high_bytes[group][h] = bytes.high;
          low_bytes[group][h] = bytes.low;
        }
      }
      merge.add(partial, state);

      stream.wait(c, 1);
      if (reaches) add_values<P>(stream, c, slabs, high_bytes, low_bytes, merge, o);
      __syncthreads();
      if (slots == 4) {
        stream.fill(c + 1, 1);
      } else {
        stream.fill(c + 1, 0);
      }
    }
  }
  write_queries<P::kDimTiles>(args, kv_head, queries, state, o);
}

// The grid: x the kv head; y the tile of queries, from the last, whose context is the longest.
template <class P>
__global__ void __launch_bounds__(P::kThreads) prefill_kernel(CodedRows args, int slots) {
  extern __shared__ uint4 shared_memory[];
  const int tile = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  let_next_start();
  wait_for_previous();
  attend<P>(args, static_cast<int>(blockIdx.x), tile * P::kQueries, slots,
            reinterpret_cast<uint8_t*>(shared_memory));
}

template <int kSlabs, int kDigits>
bool launch_if(const PrefillPlan& plan, const CodedRows& args, cudaStream_t stream) {
  using P = Prefill<kSlabs, kDigits>;
  if (plan.dims != 32 * kSlabs || digit_count(args.kv.type) != kDigits) return false;
  static_assert(sizeof(typename P::Shared) <= kPrefillExtraBytes);
  launch(prefill_kernel<P>, plan.launch, stream, args, plan.slots);
  return true;
}

}  // namespace

void launch_attention(const PrefillPlan& plan, const CodedRows& args, cudaStream_t stream) {
  require_instance(launch_if<2, 1>(plan, args, stream) || launch_if<4, 1>(plan, args, stream) ||
                   launch_if<8, 1>(plan, args, stream) || launch_if<2, 2>(plan, args, stream) ||
                   launch_if<4, 2>(plan, args, stream) || launch_if<8, 2>(plan, args, stream));
}

}  // namespace edgellm::cuda
