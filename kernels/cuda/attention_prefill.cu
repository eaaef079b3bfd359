// Attention of many rows (kernels/ops.h), bound by the float32 pipes: a product, a sum and an fma
// for every (row, head, position, dimension), in the canonical order.
//
// A block takes a few neighbouring rows with the query heads of one kv head, its "queries", and
// walks over the chunks of their context. A chunk's keys and values are widened to float32 in
// shared memory once for all queries. A warp has kQueries of the queries for itself. First a lane
// scores them at one or two positions; then the warp turns to sums over positions, where a lane has
// four dimensions. Keys are stored in the order of the queries (attention_chunk.cuh).
#include <cuda_fp16.h>

#include <iterator>
#include <utility>

#include "kernels/cuda/attention_chunk.cuh"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/launch.cuh"

namespace edgellm::cuda {
namespace {

// The instance kPrefillCuts[I] as constants.
template <size_t I>
struct PrefillShape
    : ChunkShape<kPrefillCuts[I].dims, kPrefillCuts[I].queries, kPrefillCuts[I].staged> {
  static constexpr PrefillCut kCut = kPrefillCuts[I];
  static constexpr int kThreads = kCut.threads();
  static constexpr int kBlocksPerSm = kCut.blocks_per_sm;
  static constexpr int kBlockQueries = kCut.block_queries();

  // Sums over positions: lanes that share a query, the queries of a lane, its groups of four
  // dimensions. The last lanes' queries may be none, with any weights.
  static constexpr int kLanes = kCut.dims / 4 < 32 ? kCut.dims / 4 : 32;
  static constexpr int kOwn = (kCut.queries * kLanes + 31) / 32;
  static constexpr int kFours = kCut.dims / (4 * kLanes);

  static constexpr int kWeightStride = kCut.weight_stride();
  static constexpr int kKeyStride = kCut.key_stride();
  static constexpr int kStageFloats = kCut.stage_floats();
  static constexpr int kQueryFloats = kCut.query_floats();
};

__device__ inline float& component(float4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Four neighbouring elements in one load.
template <class Element>
struct FourOf;
template <>
struct FourOf<float> {
  using Type = float4;
};
template <>
struct FourOf<uint16_t> {
  using Type = uint2;
};
__device__ inline float4 widened_four(float4 four) { return four; }
__device__ inline float4 widened_four(uint2 four) {
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&four.x));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&four.y));
  return make_float4(low.x, low.y, high.x, high.y);
}

// Keys or values on their way into shared memory, kStaged positions at a time: fetch() starts the
// loads, store() writes what they brought. A warp does other work in between. `first` is the first
// position in the chunk, `count` how many of the chunk are in use; `tile` is the chunk's.
//
// Only heads of exactly kDims dimensions travel in registers; others are loaded by store().
template <class S, class Element>
struct KeyStage {
  // The tile keeps dimensions lane, lane + 8, ... together (key_index), and so does the stored
  // order. Eight neighbouring threads take eight positions.
  static constexpr int kLaneDims = S::kDims / kKeyLanes;
  static constexpr int kItems = S::kStaged * kKeyLanes / S::kThreads;
  using Four = typename FourOf<Element>::Type;
  Four fours[kItems][kLaneDims / 4];

  __device__ static int position_of(int item) {
    const int i = static_cast<int>(threadIdx.x) + item * S::kThreads;
    return i % 8 + i / (8 * kKeyLanes) * 8;
  }
  __device__ static int lane_of() { return static_cast<int>(threadIdx.x) / 8 % kKeyLanes; }

  __device__ void fetch(const Element* tile, int first, int count, int head_dim) {
    if (head_dim != S::kDims) return;
#pragma unroll
    for (int n = 0; n < kItems; ++n) {
      const int position = first + position_of(n);
      if (position >= count) continue;
      const Four* from =
          reinterpret_cast<const Four*>(tile + position * S::kDims + lane_of() * kLaneDims);
#pragma unroll
      for (int m = 0; m < kLaneDims / 4; ++m) fours[n][m] = from[m];
    }
  }

  __device__ void store(const Element* tile, int first, int count, int head_dim,
                        float* staged) const {
    if (head_dim != S::kDims) {
      for (int i = static_cast<int>(threadIdx.x); i < S::kStaged * S::kDims; i += S::kThreads) {
        const int position = i / S::kDims;
        const int d = i % S::kDims;
        if (first + position >= count) break;
        staged[position * S::kKeyStride + stored_index<S::kDims>(d)] =
            d < head_dim ? widened(tile[key_index(first + position, d, head_dim)]) : 0.0f;
      }
      return;
    }
    constexpr int kBits = kLaneDims == 8 ? 3 : kLaneDims == 16 ? 4 : 5;
#pragma unroll
    for (int n = 0; n < kItems; ++n) {
      float values[kLaneDims];
#pragma unroll
      for (int m = 0; m < kLaneDims; m += 4) {
        const float4 four = widened_four(fours[n][m / 4]);
        values[m] = four.x;
        values[m + 1] = four.y;
        values[m + 2] = four.z;
        values[m + 3] = four.w;
      }
      float4* to = reinterpret_cast<float4*>(staged + position_of(n) * S::kKeyStride +
                                             reverse_bits<3>(lane_of()) * kLaneDims);
#pragma unroll
      for (int i = 0; i < kLaneDims; i += 4) {
        to[i / 4] =
            make_float4(values[reverse_bits<kBits>(i)], values[reverse_bits<kBits>(i + 1)],
                        values[reverse_bits<kBits>(i + 2)], values[reverse_bits<kBits>(i + 3)]);
      }
    }
  }
};

// Stored as [position][kDims].
template <class S, class Element>
struct ValueStage {
  static constexpr int kItems = S::kStaged * S::kDims / 4 / S::kThreads;
  using Four = typename FourOf<Element>::Type;
  Four fours[kItems];

  __device__ void fetch(const Element* tile, int first, int count, int head_dim) {
    if (head_dim != S::kDims) return;
#pragma unroll
    for (int n = 0; n < kItems; ++n) {
      const int i = static_cast<int>(threadIdx.x) + n * S::kThreads;
      if (first + i / (S::kDims / 4) >= count) continue;
      fours[n] = reinterpret_cast<const Four*>(tile + first * S::kDims)[i];
    }
  }

  __device__ void store(const Element* tile, int first, int count, int head_dim,
                        float* staged) const {
    if (head_dim != S::kDims) {
      for (int i = static_cast<int>(threadIdx.x); i < S::kStaged * S::kDims; i += S::kThreads) {
        const int position = i / S::kDims;
        const int d = i % S::kDims;
        if (first + position >= count) break;
        staged[i] = d < head_dim ? widened(tile[value_index(first + position, d, head_dim)]) : 0.0f;
      }
      return;
    }
#pragma unroll
    for (int n = 0; n < kItems; ++n) {
      reinterpret_cast<float4*>(staged)[static_cast<int>(threadIdx.x) + n * S::kThreads] =
          widened_four(fours[n]);
    }
  }
};

// What of the weighted values a lane sums: queries `query` .. query + kOwn - 1, and of each the
// four dimensions from d + f * 4 * kLanes on, f < kFours.
template <class S>
struct OwnSums {
  int query, d;

  __device__ __forceinline__ OwnSums() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    query = lane / S::kLanes * S::kOwn;
    d = lane % S::kLanes * 4;
  }
};

// A lane's sums over the positions of a chunk, in ascending order: of the weights, for query
// lane % kQueries, and of its own weighted values.
template <class S>
struct ChunkSums {
  const float* lane_weights;
  const float* own_weights;
  float sum = 0.0f;
  float4 o[S::kOwn][S::kFours];

  __device__ __forceinline__ ChunkSums(const OwnSums<S>& own, const float* weights) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    lane_weights = weights + lane % S::kQueries * S::kWeightStride;
    own_weights = weights + own.query * S::kWeightStride;
#pragma unroll
    for (int q = 0; q < S::kOwn; ++q) {
#pragma unroll
      for (int f = 0; f < S::kFours; ++f) o[q][f] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  __device__ __forceinline__ void add(int q, int f, float weight, float4 v) {
    float4& to = o[q][f];
    to.x = fmaf(weight, v.x, to.x);
    to.y = fmaf(weight, v.y, to.y);
    to.z = fmaf(weight, v.z, to.z);
    to.w = fmaf(weight, v.w, to.w);
  }

  // Positions j .. j + 3, j a multiple of 4.
  __device__ __forceinline__ void add_four(int j, const float4 (&values)[4][S::kFours]) {
    const float4 p = *reinterpret_cast<const float4*>(lane_weights + j);
    sum = add_in_order(sum, p);
#pragma unroll
    for (int q = 0; q < S::kOwn; ++q) {
      const float4 w = *reinterpret_cast<const float4*>(own_weights + q * S::kWeightStride + j);
#pragma unroll
      for (int f = 0; f < S::kFours; ++f) {
        add(q, f, w.x, values[0][f]);
        add(q, f, w.y, values[1][f]);
        add(q, f, w.z, values[2][f]);
        add(q, f, w.w, values[3][f]);
      }
    }
  }
};

// What a warp knows of its queries. Query i of a block is row i / heads, head i % heads.
template <class S>
struct WarpQueries {
  int first;  // of the block's queries
  int used;   // of the kQueries; the rest repeat the last one and write nothing

  __device__ WarpQueries(const QueryBlock& block, int warp) : first(warp * S::kQueries) {
    used = min(S::kQueries, block.rows * block.heads - first);
  }
  __device__ int row(const QueryBlock& block, int q) const {
    return block.first_row + (first + min(q, used - 1)) / block.heads;
  }
  __device__ int head(const QueryBlock& block, int group, int q) const {
    return block.kv_head * group + block.first_head + (first + min(q, used - 1)) % block.heads;
  }
};

// Scores of a chunk for a warp's queries, of which each lane keeps those of its positions. `keys`
// holds the chunk's first keys; the first values are on their way into `values` when this returns.
// `staged_count`: the chunk's positions in use; `count_any`: those that a query of the warp
// reaches.
template <class S, class Element>
__device__ __forceinline__ void score_chunk(KeyStage<S, Element>& keys,
                                            ValueStage<S, Element>& values, const Element* key_tile,
                                            const Element* value_tile, int staged_count,
                                            int count_any, int head_dim, const float* queries,
                                            float* staged,
                                            float (&score)[S::kParts][S::kQueries][S::kPositions]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    __syncthreads();  // everyone is done with what was staged before
    keys.store(key_tile, part * S::kStaged, staged_count, head_dim, staged);
    if (part + 1 < S::kParts) {
      keys.fetch(key_tile, (part + 1) * S::kStaged, staged_count, head_dim);
    } else {
      values.fetch(value_tile, 0, staged_count, head_dim);
    }
    __syncthreads();
    if (count_any > part * S::kStaged) {
      constexpr int kGroup = 32;
      const auto keys_of = [&](int n) {
        const float* from = staged + lane * S::kKeyStride + n * kGroup;
        return [from](int p, int i) {
          return *reinterpret_cast<const float4*>(from + p * 32 * S::kKeyStride + i);
        };
      };
      dot_products<S, kGroup>(queries, keys_of, score[part]);
    }
  }
}

// The state of the chunks so far: maximum and sum of query lane % kQueries, a lane's own weighted
// values.
template <class S>
struct RunningState {
  float max = 0.0f;
  float sum = 0.0f;
  float4 o[S::kOwn][S::kFours];

  __device__ __forceinline__ void start(const ChunkSums<S>& chunk, float chunk_max) {
    max = chunk_max;
    sum = chunk.sum;
#pragma unroll
    for (int q = 0; q < S::kOwn; ++q) {
#pragma unroll
      for (int f = 0; f < S::kFours; ++f) o[q][f] = chunk.o[q][f];
    }
  }

  // Queries that end before this chunk, whose `count` is not positive, keep their state.
  __device__ __forceinline__ void merge(const ChunkSums<S>& chunk, float chunk_max,
                                        const OwnSums<S>& own, int count) {
    const MergeFactors factors(max, chunk_max);
    if (count > 0) {
      max = factors.max;
      sum = merged(sum, factors.a, chunk.sum, factors.b);
    }
#pragma unroll
    for (int q = 0; q < S::kOwn; ++q) {
      const float own_a = __shfl_sync(kAllLanes, factors.a, own.query + q);
      const float own_b = __shfl_sync(kAllLanes, factors.b, own.query + q);
      const bool reaches = __shfl_sync(kAllLanes, count, own.query + q) > 0;
      if (!reaches) continue;
#pragma unroll
      for (int f = 0; f < S::kFours; ++f) {
        const float4 s = chunk.o[q][f];
        o[q][f].x = merged(o[q][f].x, own_a, s.x, own_b);
        o[q][f].y = merged(o[q][f].y, own_a, s.y, own_b);
        o[q][f].z = merged(o[q][f].z, own_a, s.z, own_b);
        o[q][f].w = merged(o[q][f].w, own_a, s.w, own_b);
      }
    }
  }
};

// Writes the results of a warp's queries.
template <class S>
__device__ __forceinline__ void write_results(const AttentionArgs& args, const QueryBlock& block,
                                              int group, const WarpQueries<S>& warp,
                                              const OwnSums<S>& own, const RunningState<S>& state) {
  const int head_dim = args.kv.head_dim;
#pragma unroll
  for (int q = 0; q < S::kOwn; ++q) {
    const float total = __shfl_sync(kAllLanes, state.sum, own.query + q);
    if (own.query + q >= warp.used) continue;
    float* out = args.out + (static_cast<size_t>(warp.row(block, own.query + q)) *
                                 static_cast<size_t>(args.heads) +
                             static_cast<size_t>(warp.head(block, group, own.query + q))) *
                                static_cast<size_t>(head_dim);
#pragma unroll
    for (int f = 0; f < S::kFours; ++f) {
      const int d = own.d + f * 4 * S::kLanes;
      float4 o = state.o[q][f];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (d + i < head_dim) out[d + i] = component(o, i) / total;
      }
    }
  }
}

// Positions that queries attend to.
template <class S>
struct QueryLengths {
  int own;                // of query lane % kQueries; 0 for a warp that has none
  int shortest, longest;  // of the warp's queries
  int block;              // the longest of the block's

  __device__ __forceinline__ QueryLengths(const AttentionArgs& args, const QueryBlock& queries,
                                          const WarpQueries<S>& warp) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int last_position = 0;
    for (int r = 0; r < queries.rows; ++r) {
      last_position = max(last_position, args.places.position[queries.first_row + r]);
    }
    block = last_position + 1;
    own = warp.used > 0 ? args.places.position[warp.row(queries, lane % S::kQueries)] + 1 : 0;
    shortest = own;
    longest = own;
    for (int width = S::kQueries / 2; width >= 1; width /= 2) {
      shortest = min(shortest, __shfl_xor_sync(kAllLanes, shortest, width));
      longest = max(longest, __shfl_xor_sync(kAllLanes, longest, width));
    }
  }
};

// Rows of one sequence.
template <class S, class Element>
__device__ void attend(const AttentionArgs& args, const QueryBlock& block, float scale,
                       float* staged, float* queries, float* weights) {
  const int head_dim = args.kv.head_dim;
  const int group = args.heads / args.kv.kv_heads;
  const WarpQueries<S> warp(block, static_cast<int>(threadIdx.x) / 32);
  queries += warp.first * S::kDims;
  weights += warp.first * S::kWeightStride;

  const QueryLengths<S> lengths(args, block, warp);
  const int sequence = args.places.sequence[block.first_row];
  const OwnSums<S> own;
  RunningState<S> state;
  const Element* key_pool = static_cast<const Element*>(args.kv.k);
  const Element* value_pool = static_cast<const Element*>(args.kv.v);
  size_t next_tile = args.kv.tile_offset(sequence, 0, block.kv_head);
  KeyStage<S, Element> keys;
  ValueStage<S, Element> values;
  keys.fetch(key_pool + next_tile, 0, lengths.block, head_dim);
  for (int c = 0; c * kAttentionChunk < lengths.block; ++c) {
    const size_t tile = next_tile;
    const int begin = c * kAttentionChunk;
    const int staged_count = min(kAttentionChunk, lengths.block - begin);
    const int next_count = min(kAttentionChunk, lengths.block - begin - kAttentionChunk);
    if (next_count > 0) {
      next_tile = args.kv.tile_offset(sequence, begin + kAttentionChunk, block.kv_head);
    }
    const int count = min(kAttentionChunk, lengths.own - begin);  // of the lane's query
    const int count_all = min(kAttentionChunk, lengths.shortest - begin);
    const int count_any = min(kAttentionChunk, lengths.longest - begin);

    float score[S::kParts][S::kQueries][S::kPositions];
    score_chunk(keys, values, key_pool + tile, value_pool + tile, staged_count, count_any, head_dim,
                queries, staged, score);
    // Of the lane's query.
    const float max = count_any > 0 ? softmax_weights<S>(score, count, scale, weights) : 0.0f;

    ChunkSums<S> sums(own, weights);
#pragma unroll 1
    for (int part = 0; part < S::kParts; ++part) {
      __syncthreads();  // the weights are there, and everyone is done with what was staged before
      values.store(value_pool + tile, part * S::kStaged, staged_count, head_dim, staged);
      if (part + 1 < S::kParts) {
        values.fetch(value_pool + tile, (part + 1) * S::kStaged, staged_count, head_dim);
      } else {
        keys.fetch(key_pool + next_tile, 0, next_count, head_dim);
      }
      __syncthreads();
      const int end = (part + 1) * S::kStaged;
      const float* v = staged + own.d;
      int j = part * S::kStaged;
      // Positions that all queries of the warp attend to.
      for (; j + 4 <= min(count_all, end); j += 4, v += 4 * S::kDims) {
        float4 four[4][S::kFours];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int f = 0; f < S::kFours; ++f) {
            four[n][f] = *reinterpret_cast<const float4*>(v + n * S::kDims + f * 4 * S::kLanes);
          }
        }
        sums.add_four(j, four);
      }
      // The rest, each only for the queries that reach it: adding a zero could turn -0 into +0.
#pragma unroll 1
      for (; j < min(count_any, end); ++j, v += S::kDims) {
        if (j < count) sums.sum += sums.lane_weights[j];
#pragma unroll
        for (int q = 0; q < S::kOwn; ++q) {
          if (j >= __shfl_sync(kAllLanes, count, own.query + q)) continue;
#pragma unroll
          for (int f = 0; f < S::kFours; ++f) {
            sums.add(q, f, sums.own_weights[q * S::kWeightStride + j],
                     *reinterpret_cast<const float4*>(v + f * 4 * S::kLanes));
          }
        }
      }
    }

    if (c == 0) {
      state.start(sums, max);
    } else if (count_any > 0) {
      state.merge(sums, max, own, count);
    }
  }
  if (warp.used > 0) write_results(args, block, group, warp, own, state);
}

// The item of a block, items being sorted by falling length. Blocks go to the SMs in turn: every
// second round of them is reversed, so that an SM that has got a long item next gets a short one.
__device__ inline int balanced_item(int block, int blocks, int sms) {
  const int round = block / sms;
  if (round % 2 == 0) return block;
  const int first = round * sms;
  return first + min(first + sms, blocks) - 1 - block;
}

// Item i, the items of a pass being numbered by tile of rows, from the last, then tile of heads.
// The last rows of a prompt have the longest contexts: they come first. `memory`:
// S::kCut.shared_bytes().
template <class S, class Element>
__device__ __forceinline__ void attend_item(const AttentionArgs& args, int tile_rows,
                                            int tile_heads, int item, float scale, float* memory) {
  float* staged = memory;
  float* queries = staged + S::kStageFloats;
  float* weights = queries + S::kQueryFloats;
  const int group = args.heads / args.kv.kv_heads;
  const int head_tiles = (group + tile_heads - 1) / tile_heads * args.kv.kv_heads;
  QueryBlock block;
  block.kv_head = item % args.kv.kv_heads;
  block.first_head = item % head_tiles / args.kv.kv_heads * tile_heads;
  block.heads = min(tile_heads, group - block.first_head);
  const int tile = (args.rows + tile_rows - 1) / tile_rows - 1 - item / head_tiles;
  const int end = min((tile + 1) * tile_rows, args.rows);
  // Rows that share keys and values: neighbours of one sequence.
  for (int row = tile * tile_rows; row < end; row += block.rows) {
    block.first_row = row;
    block.rows = 1;
    while (row + block.rows < end &&
           args.places.sequence[row + block.rows] == args.places.sequence[row]) {
      ++block.rows;
    }
    load_queries<S>(args, block, group, S::kThreads, queries);
    attend<S, Element>(args, block, scale, staged, queries, weights);
    __syncthreads();
  }
}

template <class S, class Element>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksPerSm)
    prefill_kernel(AttentionArgs args, int tile_rows, int tile_heads, int sms, float scale) {
  extern __shared__ float4 memory[];
  const int item = balanced_item(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), sms);
  let_next_start();
  wait_for_previous();
  attend_item<S, Element>(args, tile_rows, tile_heads, item, scale,
                          reinterpret_cast<float*>(memory));
}

template <class Element, size_t... I>
void launch_element(const PrefillPlan& plan, const AttentionArgs& args, cudaStream_t stream,
                    std::index_sequence<I...>) {
  const auto launch_if = [&](bool is_instance, auto kernel) {
    if (is_instance) {
      launch(kernel, plan.launch, stream, args, plan.tile_rows, plan.tile_heads,
             plan.multiprocessors, attention_scale(args.kv.head_dim));
    }
    return is_instance;
  };
  require_instance(
      (launch_if(plan.instance == static_cast<int>(I), prefill_kernel<PrefillShape<I>, Element>) ||
       ...));
}

}  // namespace

void launch_attention(const PrefillPlan& plan, const AttentionArgs& args, cudaStream_t stream) {
  const auto instances = std::make_index_sequence<std::size(kPrefillCuts)>();
  if (args.kv.type == KvType::kF16) {
    launch_element<uint16_t>(plan, args, stream, instances);
  } else {
    launch_element<float>(plan, args, stream, instances);
  }
}

}  // namespace edgellm::cuda
