// Attention over codes of many rows of a sequence (prefill) on compute capability 9.0: as
// attention_prefill.cu, with the products of whole warpgroups (device/wgmma.cuh).
//
// A block has one warpgroup that brings tiles of the cache into shared memory, two chunks of them,
// and up to three that have 64 queries each. Those take turns by themselves: while one multiplies,
// the others weigh. Compiled for sm_90a only.
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/query_tile.cuh"
#include "kernels/cuda/device/tile_stream.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/integer_attention.h"

namespace edgellm::cuda {
namespace {

constexpr int kTileQueries = 64;  // of a warpgroup
constexpr int kGroupThreads = 128;
constexpr int kStages = 2;  // chunks in shared memory
static_assert(kStages == kWgmmaStages);
constexpr int kChunkTiles = kIntegerChunk / kAttentionChunk;
constexpr int kScores = kIntegerChunk / 2;         // of a lane, in a chunk
constexpr int kWeightGroups = kIntegerChunk / 16;  // four neighbouring positions a lane each

template <int kSlabs_, int kDigits_, int kGroups_>
struct Wgmma {
  static constexpr int kSlabs = kSlabs_;
  static constexpr int kDigits = kDigits_;
  static constexpr int kGroups = kGroups_;  // warpgroups with queries
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  static constexpr int kDims = 32 * kSlabs;
  static constexpr int kRowBytes = slab_row_bytes(kDigits);
  static constexpr int kKeySlab = kIntegerChunk * kRowBytes;  // of a chunk
  static constexpr int kValueSlab = kDims * kRowBytes;        // of 32 positions
  static constexpr int kTileBytes = code_tile_bytes(kDims, kDigits);
  static constexpr int kQueryBytes = kTileQueries * query_code_bytes(kDims);
  // Dimensions whose sums are made at a time.
  static constexpr int kSumDims = kSlabs % 2 == 0 ? 64 : 32;

  using Units = typename ChunkStream<kDigits, kStages>::Units;

  // In this order from a multiple of 1024 bytes on: stages of keys and values, queries, this.
  struct Shared {
    alignas(16) Units units[kStages];
    int farthest[kGroups][4];  // position that a query of each warp attends to
    alignas(8) uint64_t keys_arrived[kStages];
    uint64_t values_arrived[kStages];
    uint64_t keys_read[kStages];
    uint64_t values_read[kStages];
  };

  __device__ static uint8_t* keys(uint8_t* memory, int stage) {
    return memory + stage * 2 * kChunkTiles * kTileBytes;
  }
  __device__ static uint8_t* values(uint8_t* memory, int stage) {
    return keys(memory, stage) + kChunkTiles * kTileBytes;
  }
  __device__ static uint8_t* queries(uint8_t* memory, int group) {
    return keys(memory, kStages) + group * kQueryBytes;
  }
  __device__ static Shared& shared(uint8_t* memory) {
    return *reinterpret_cast<Shared*>(queries(memory, kGroups));
  }
};

// The chunks that a block walks through, over all segments of its rows.
struct ChunkCounter {
  int n = 0;

  __device__ __forceinline__ int stage() const { return n % kStages; }
  __device__ __forceinline__ uint32_t parity() const { return n / kStages & 1; }
};

// The copies of a block, by one thread.
template <class W>
__device__ __forceinline__ void copy_segment(const CodedRows& args, int kv_head,
                                             const RowSegment& segment, ChunkCounter& count,
                                             uint8_t* memory) {
  typename W::Shared& shared = W::shared(memory);
  for (int c = 0; c * kIntegerChunk <= segment.last; ++c, ++count.n) {
    const int stage = count.stage();
    const int tiles =
        min(segment.last - c * kIntegerChunk, kIntegerChunk - 1) / kAttentionChunk + 1;
    size_t number[kChunkTiles];
#pragma unroll
    for (int i = 0; i < kChunkTiles; ++i) {
      if (i >= tiles) break;
      number[i] =
          args.kv.tile_number(segment.sequence, c * kIntegerChunk + i * kAttentionChunk, kv_head);
    }
    if (count.n >= kStages) barrier_wait(&shared.keys_read[stage], count.parity() ^ 1);
    barrier_expect(
        &shared.keys_arrived[stage],
        tiles * (W::kTileBytes + static_cast<int>(sizeof(typename W::Units)) / kChunkTiles));
#pragma unroll
    for (int i = 0; i < kChunkTiles; ++i) {
      if (i >= tiles) break;
      const uint8_t* from = static_cast<const uint8_t*>(args.kv.k) + number[i] * W::kTileBytes;
#pragma unroll
      for (int s = 0; s < W::kSlabs; ++s) {
        copy_bulk(W::keys(memory, stage) + s * W::kKeySlab + i * W::kKeySlab / kChunkTiles,
                  from + s * key_slab_bytes(W::kDigits), key_slab_bytes(W::kDigits),
                  &shared.keys_arrived[stage]);
      }
      copy_bulk(shared.units[stage][i], args.kv.units_of(number[i]),
                static_cast<int>(sizeof shared.units[stage][i]), &shared.keys_arrived[stage]);
    }
    if (count.n >= kStages) barrier_wait(&shared.values_read[stage], count.parity() ^ 1);
    barrier_expect(&shared.values_arrived[stage], tiles * W::kTileBytes);
#pragma unroll
    for (int i = 0; i < kChunkTiles; ++i) {
      if (i >= tiles) break;
      copy_bulk(W::values(memory, stage) + i * W::kTileBytes,
                static_cast<const uint8_t*>(args.kv.v) + number[i] * W::kTileBytes, W::kTileBytes,
                &shared.values_arrived[stage]);
    }
  }
}

// sums = 256 * (upper digits of queries and keys) + the mixed products.
template <class W>
__device__ __forceinline__ void multiply_keys(uint32_t queries, uint32_t keys,
                                              int (&sum)[kScores]) {
  hold(sum);
  start_products();
#pragma unroll
  for (int s = 0; s < W::kSlabs; ++s) {
    multiply_shared(sum, operand<64>(queries + s * key_slab_bytes(2)),
                    operand<W::kRowBytes>(keys + s * W::kKeySlab), s > 0);
  }
  end_products();
  wait_for_products<0>();
  hold(sum);
#pragma unroll
  for (int i = 0; i < kScores; ++i) sum[i] <<= 8;
  hold(sum);
  start_products();
#pragma unroll
  for (int s = 0; s < W::kSlabs; ++s) {
    const uint32_t q = queries + s * key_slab_bytes(2);
    const uint32_t k = keys + s * W::kKeySlab;
    multiply_shared(sum, operand<64>(q + kSlabDims), operand<W::kRowBytes>(k), true);
    if constexpr (W::kDigits == 2) {
      multiply_shared(sum, operand<64>(q), operand<W::kRowBytes>(k + kSlabDims), true);
    }
  }
  end_products();
  wait_for_products<0>();
  hold(sum);
}

// Makes the sums scores, in place; their maxima. `masked`: some lie behind a query's last position.
__device__ __forceinline__ void score_sums(int (&sum)[kScores],
                                           const float (&units)[kChunkTiles][3][kAttentionChunk],
                                           const float (&factor)[2], int first, bool masked,
                                           const int (&last)[2], float (&largest)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int group = 0; group < kWeightGroups; ++group) {
    const FourUnits four(units[group / 4], 16 * (group % 4) + 4 * t);
#pragma unroll
    for (int y = 0; y < 4; ++y) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int& at = sum[8 * group + y / 2 * 4 + 2 * h + y % 2];
        at = __float_as_int(integer_score(at, four.of[y], factor[h]));
      }
    }
  }
  if (masked) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int position = first + i / 8 * 16 + 4 * t + i / 4 % 2 * 2 + i % 2;
      if (position > last[i / 2 % 2]) sum[i] = __float_as_int(-INFINITY);
    }
  }
  largest[0] = largest[1] = -INFINITY;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], __int_as_float(sum[i]));
  }
}

// The bytes of a chunk's weights, as the rows of the products with the values: steps of 32
// positions.
struct ChunkWeights {
  uint32_t high[kWeightGroups / 2][4];
  uint32_t low[kWeightGroups / 2][4];
};

__device__ __forceinline__ void weigh_scores(const int (&score)[kScores],
                                             const float (&units)[kChunkTiles][3][kAttentionChunk],
                                             const ChunkMerge& merge, QueryState& state,
                                             ChunkWeights& weights) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  float partial[2][4] = {};
#pragma unroll
  for (int group = 0; group < kWeightGroups; ++group) {
    const float4 per_unit =
        *reinterpret_cast<const float4*>(&units[group / 4][2][16 * (group % 4) + 4 * t]);
    const float unit[4] = {per_unit.x, per_unit.y, per_unit.z, per_unit.w};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t code[4];
#pragma unroll
      for (int y = 0; y < 4; ++y) {
        const float weight = integer_weight(
            __int_as_float(score[8 * group + y / 2 * 4 + 2 * h + y % 2]), merge.max[h]);
        partial[h][y] = fmaf(weight, unit[y], partial[h][y]);
        code[y] = weight_bits(weight);
      }
      const WeightBytes bytes(code);
      weights.high[group / 2][group % 2 * 2 + h] = bytes.high;
      weights.low[group / 2][group % 2 * 2 + h] = bytes.low;
    }
  }
  merge.add(partial, state);
}

// sums of the values' dimensions from `first` on, weighted.
template <class W>
__device__ __forceinline__ void multiply_values(const ChunkWeights& weights, uint32_t values,
                                                int first, int (&sum)[W::kSumDims / 2]) {
  values += static_cast<uint32_t>(first * W::kRowBytes);
  hold(sum);
  start_products();
#pragma unroll
  for (int step = 0; step < kWeightGroups / 2; ++step) {
    multiply_registers(sum, weights.high[step],
                       operand<W::kRowBytes>(values + step * W::kValueSlab), step > 0);
  }
  end_products();
  wait_for_products<0>();
  hold(sum);
#pragma unroll
  for (int i = 0; i < W::kSumDims / 2; ++i) sum[i] <<= 8;
  hold(sum);
  start_products();
#pragma unroll
  for (int step = 0; step < kWeightGroups / 2; ++step) {
    const uint32_t at = values + step * W::kValueSlab;
    multiply_registers(sum, weights.low[step], operand<W::kRowBytes>(at), true);
    if constexpr (W::kDigits == 2) {
      multiply_registers(sum, weights.high[step], operand<W::kRowBytes>(at + kSlabDims), true);
    }
  }
  end_products();
  wait_for_products<0>();
  hold(sum);
}

// One chunk for the queries of a warpgroup.
template <class W>
__device__ __forceinline__ void attend_chunk(uint32_t queries, uint8_t* memory, int stage,
                                             uint32_t parity, const float (&factor)[2], int first,
                                             bool masked, const int (&last)[2], QueryState& state,
                                             float (&o)[4 * W::kSlabs][4]) {
  typename W::Shared& shared = W::shared(memory);
  barrier_wait(&shared.keys_arrived[stage], parity);
  int score[kScores];
  multiply_keys<W>(queries, shared_address(W::keys(memory, stage)), score);
  float largest[2];
  score_sums(score, shared.units[stage], factor, first, masked, last, largest);
  const ChunkMerge merge(largest, state);
  ChunkWeights weights;
  weigh_scores(score, shared.units[stage], merge, state, weights);
  barrier_arrive_at(&shared.keys_read[stage]);
  barrier_wait(&shared.values_arrived[stage], parity);
#pragma unroll
  for (int step = 0; step < kWeightGroups / 2; ++step) {
    hold(weights.high[step]);
    hold(weights.low[step]);
  }
  const bool keeps = merge.before[0] == 1.0f && merge.before[1] == 1.0f;
#pragma unroll
  for (int d = 0; d < W::kDims; d += W::kSumDims) {
    int sum[W::kSumDims / 2];
    multiply_values<W>(weights, shared_address(W::values(memory, stage)), d, sum);
    if (d + W::kSumDims == W::kDims) barrier_arrive_at(&shared.values_read[stage]);
    // Times one changes nothing.
    if (!keeps) {
#pragma unroll
      for (int i = 0; i < W::kSumDims / 2; ++i) o[d / 8 + i / 4][i % 4] *= merge.before[i / 2 % 2];
    }
#pragma unroll
    for (int i = 0; i < W::kSumDims / 2; ++i) {
      float& to = o[d / 8 + i / 4][i % 4];
      to = fmaf(static_cast<float>(sum[i]), merge.chunk[i / 2 % 2], to);
    }
  }
}

// The queries of warpgroup `group`, from `first` on.
template <class W>
__device__ __forceinline__ void attend(const CodedRows& args, int kv_head, int first, int group,
                                       int first_row, int end_row, uint8_t* memory) {
  typename W::Shared& shared = W::shared(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const uint32_t queries_at = shared_address(W::queries(memory, group));
  const LaneQueries queries(args, kv_head, first + 16 * warp);
  QueryState state;
  float o[4 * W::kSlabs][4] = {};
  ChunkCounter count;
  RowSegment segment{};
#pragma unroll 1
  for (int row = first_row; row < end_row; row = segment.end) {
    segment = next_segment(args.places, row, end_row);
    const WarpReach reach(args, queries, segment);
    // The products are the whole warpgroup's.
    if (threadIdx.x % 32 == 0) shared.farthest[group][warp] = reach.farthest;
    barrier_sync(1 + group, kGroupThreads);
    int farthest = reach.farthest;
#pragma unroll
    for (int i = 0; i < 4; ++i) farthest = max(farthest, shared.farthest[group][i]);
    barrier_sync(1 + group, kGroupThreads);
#pragma unroll 1
    for (int c = 0; c * kIntegerChunk <= segment.last; ++c, ++count.n) {
      const int stage = count.stage();
      if (c * kIntegerChunk > farthest) {
        // The copies of a stage end before it is filled again.
        barrier_wait(&shared.keys_arrived[stage], count.parity());
        barrier_wait(&shared.values_arrived[stage], count.parity());
        barrier_arrive_at(&shared.keys_read[stage]);
        barrier_arrive_at(&shared.values_read[stage]);
        continue;
      }
      attend_chunk<W>(queries_at, memory, stage, count.parity(), queries.factor, c * kIntegerChunk,
                      c * kIntegerChunk + kIntegerChunk - 1 > reach.nearest, reach.last, state, o);
    }
  }
  write_queries(args, kv_head, queries, state, o);
}

// The queries of a kv head from `first` on.
template <class W>
__device__ __forceinline__ void attend_block(const CodedRows& args, int kv_head, int first,
                                             uint8_t* memory) {
  typename W::Shared& shared = W::shared(memory);
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&shared.keys_arrived[i], 1);
      barrier_init(&shared.values_arrived[i], 1);
      barrier_init(&shared.keys_read[i], W::kGroups * kGroupThreads);
      barrier_init(&shared.values_read[i], W::kGroups * kGroupThreads);
    }
    barriers_initialised();
  }
  // Units that no copy has brought meet weights of 0: they must be finite.
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof shared.units) / 4;
       i += W::kThreads) {
    (&shared.units[0][0][0][0])[i] = 0.0f;
  }
  if (group < W::kGroups) {
    load_queries<kTileQueries>(args, kv_head, first + group * kTileQueries,
                               static_cast<int>(threadIdx.x) % kGroupThreads, kGroupThreads,
                               W::queries(memory, group));
  }
  writes_visible_to_copies();
  __syncthreads();
  const int first_row = first / args.group();
  const int end_row = min((first + W::kGroups * kTileQueries - 1) / args.group() + 1, args.rows);
  if (group == W::kGroups) {
    // To the warpgroups that compute. A block of one has enough.
    if constexpr (W::kGroups > 1) give_registers<W::kGroups == 2 ? 24 : 32>();
    if (threadIdx.x / 32 % 4 != 0) return;
    ChunkCounter count;
    RowSegment segment{};
    for (int row = first_row; row < end_row; row = segment.end) {
      segment = next_segment(args.places, row, end_row);
      if (threadIdx.x % 32 == 0) copy_segment<W>(args, kv_head, segment, count, memory);
    }
  } else {
    if constexpr (W::kGroups > 1) take_registers<W::kGroups == 2 ? 240 : 160>();
    attend<W>(args, kv_head, first + group * kTileQueries, group, first_row, end_row, memory);
  }
}

// The grid: x the kv head; y the queries, from the last, whose context is the longest.
template <class W>
__global__ void __launch_bounds__(W::kThreads, 1) wgmma_kernel(CodedRows args) {
  extern __shared__ uint8_t shared_memory[];
  const int tile = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  let_next_start();
  wait_for_previous();
  attend_block<W>(args, static_cast<int>(blockIdx.x), tile * W::kGroups * kTileQueries,
                  shared_memory + (1024 - (shared_address(shared_memory) & 1023)) % 1024);
}

template <int kSlabs, int kDigits, int kGroups>
bool launch_if(const WgmmaPlan& plan, const CodedRows& args, cudaStream_t stream) {
  using W = Wgmma<kSlabs, kDigits, kGroups>;
  if (plan.slabs != kSlabs || digit_count(args.kv.type) != kDigits || plan.groups != kGroups) {
    return false;
  }
  static_assert(sizeof(typename W::Shared) <= kWgmmaExtraBytes);
  launch(wgmma_kernel<W>, plan.launch, stream, args);
  return true;
}
template <int kSlabs, int kDigits>
bool launch_if_groups(const WgmmaPlan& plan, const CodedRows& args, cudaStream_t stream) {
  return launch_if<kSlabs, kDigits, 1>(plan, args, stream) ||
         launch_if<kSlabs, kDigits, 2>(plan, args, stream) ||
         launch_if<kSlabs, kDigits, 3>(plan, args, stream);
}
template <int kDigits>
bool launch_if_slabs(const WgmmaPlan& plan, const CodedRows& args, cudaStream_t stream) {
  return launch_if_groups<1, kDigits>(plan, args, stream) ||
         launch_if_groups<2, kDigits>(plan, args, stream) ||
         launch_if_groups<3, kDigits>(plan, args, stream) ||
         launch_if_groups<4, kDigits>(plan, args, stream);
}

}  // namespace

bool has_wgmma() {
  static const bool has = [] {
    cudaFuncAttributes attributes;
    const cudaError_t status = cudaFuncGetAttributes(
        &attributes, reinterpret_cast<const void*>(wgmma_kernel<Wgmma<2, 2, 1>>));
    if (status != cudaSuccess) cudaGetLastError();  // clears it
    return status == cudaSuccess;
  }();
  return has;
}

void launch_attention(const WgmmaPlan& plan, const CodedRows& args, cudaStream_t stream) {
  require_instance(launch_if_slabs<1>(plan, args, stream) ||
                   launch_if_slabs<2>(plan, args, stream));
}

}  // namespace edgellm::cuda
