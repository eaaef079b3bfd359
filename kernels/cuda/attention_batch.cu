// Attention of rows that are each alone in their sequence (kernels/ops.h): continuous batching.
// Where all blocks are resident at once, the memory and the float32 arithmetic bound it alike.
//
// A block takes a row with query heads of one kv head. Its teams, of a warp or two, each take a
// chunk of the context and leave its state in shared memory; then a warp for each query merges a
// round of them in ascending order. Nothing depends on which team made a chunk's state, nor on how
// many teams there are.
//
// Keys and values wait in shared memory as the cache has them: one lane reads each key, and one
// lane each value.
#include <cuda_fp16.h>

#include "kernels/cuda/attention_chunk.cuh"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace edgellm::cuda {
namespace {

// kExact: the heads have exactly kDims dimensions. kTeam: the warps that share a chunk, each with
// kQueries queries of its own.
template <int kDims_, bool kExact_, int kQueries_, int kTeam_, class Element>
struct BatchShape
    : ChunkShape<kDims_, kQueries_, BatchCut{kDims_, sizeof(Element), kQueries_, kTeam_}.staged()> {
  static constexpr BatchCut kCut{kDims_, sizeof(Element), kQueries_, kTeam_};
  static constexpr bool kExact = kExact_;
  static constexpr int kTeam = kTeam_;
  static constexpr int kTeamThreads = kCut.team_threads();
  static constexpr int kBlockQueries = kCut.block_queries();
  static constexpr int kMaxTeams = kCut.max_teams();

  // The dimensions of a key that are together (key_index), an aligned group of the stored order.
  static constexpr int kLaneDims = kDims_ / kKeyLanes;
  static constexpr int kPerWord = 16 / sizeof(Element);
  static constexpr int kWords = kDims_ / kPerWord;  // of a key or a value, 16 bytes each

  // Sums over positions: a lane has all queries and kGroups groups of kVector dimensions, so that
  // it reads and widens a value once.
  static constexpr int kVector = kDims_ < 128 ? kDims_ / 32 : 4;
  static constexpr int kGroups = kDims_ / (32 * kVector);
  // Every lane takes the weights of the same position: nothing to pad for.
  static constexpr int kWeightStride = kAttentionChunk;
};

// Shared memory of a team.
template <class S>
struct alignas(16) TeamMemory {
  uint4 staged[S::kStaged * S::kWords];  // keys, then values, then o [kBlockQueries][kDims]
  float weights[S::kBlockQueries * S::kWeightStride];
  float max[S::kBlockQueries];  // of the chunk
  float sum[S::kBlockQueries];
};
// Shared memory of a block's row.
template <class S>
struct alignas(16) RowMemory {
  float queries[S::kBlockQueries * S::kDims];
  // The state after the rounds so far. Query q is warp (q % warps)'s.
  float o[S::kBlockQueries * S::kDims];
  float max[S::kBlockQueries];
  float sum[S::kBlockQueries];
};

template <class S>
__device__ __forceinline__ int team_thread() {
  return static_cast<int>(threadIdx.x) % S::kTeamThreads;
}
template <class S>
__device__ __forceinline__ void team_sync() {
  if constexpr (S::kTeam == 1) {
    __syncwarp();
  } else {
    static_assert(S::kMaxTeams <= 15);
    barrier_sync(1 + static_cast<int>(threadIdx.x) / S::kTeamThreads, S::kTeamThreads);
  }
}

// Where word `word` of the key of a position lies: neighbouring positions take the same word from
// other banks.
template <class S>
__device__ __forceinline__ int key_word(int position, int word) {
  return position * S::kWords + (word ^ position % 8);
}

// Starts to copy the keys of the chunk's positions begin .. end - 1 into the team's shared memory,
// where those from `first` on are kept; absent dimensions are zeros.
template <class S, class Element>
__device__ void fetch_keys(const Element* tile, int first, int begin, int end, int head_dim,
                           uint4* staged) {
  const int t = team_thread<S>();
  if constexpr (S::kExact) {
    const uint4* from = reinterpret_cast<const uint4*>(tile);
#pragma unroll 2
    for (int i = begin * S::kWords + t; i < end * S::kWords; i += S::kTeamThreads) {
      copy_async(staged + key_word<S>(i / S::kWords - first, i % S::kWords), from + i);
    }
  } else {
    Element* to = reinterpret_cast<Element*>(staged);
#pragma unroll 2
    for (int i = begin * S::kDims + t; i < end * S::kDims; i += S::kTeamThreads) {
      const int position = i / S::kDims;
      const int place = i % S::kDims;
      const int d = place % S::kLaneDims * kKeyLanes + place / S::kLaneDims;
      to[key_word<S>(position - first, place / S::kPerWord) * S::kPerWord + place % S::kPerWord] =
          d < head_dim ? tile[key_index(position, d, head_dim)] : Element{0};
    }
  }
}

// The same for values, [position][kDims].
template <class S, class Element>
__device__ void fetch_values(const Element* tile, int first, int begin, int end, int head_dim,
                             uint4* staged) {
  const int t = team_thread<S>();
  if constexpr (S::kExact) {
    const uint4* from = reinterpret_cast<const uint4*>(tile);
    uint4* to = staged - first * S::kWords;
#pragma unroll 2
    for (int i = begin * S::kWords + t; i < end * S::kWords; i += S::kTeamThreads)
      copy_async(to + i, from + i);
  } else {
    Element* to = reinterpret_cast<Element*>(staged) - first * S::kDims;
#pragma unroll 2
    for (int i = begin * S::kDims + t; i < end * S::kDims; i += S::kTeamThreads) {
      const int d = i % S::kDims;
      to[i] = d < head_dim ? tile[value_index(i / S::kDims, d, head_dim)] : Element{0};
    }
  }
}

// Fills the values of `positions` positions up to a multiple of four with -0. With a weight of +0
// that changes no sum, not even one that is -0.
template <class S, class Element>
__device__ void pad_values(int positions, uint4* staged) {
  constexpr uint32_t kZeros = sizeof(Element) == 2 ? 0x80008000u : 0x80000000u;
  const int t = team_thread<S>();
#pragma unroll 1
  for (int i = positions * S::kWords + t; i < (positions + 3) / 4 * 4 * S::kWords;
       i += S::kTeamThreads) {
    staged[i] = make_uint4(kZeros, kZeros, kZeros, kZeros);
  }
}

// kCount neighbouring elements of shared memory, in one load.
template <int kCount>
__device__ __forceinline__ void load_widened(const float* from, float (&to)[kCount]) {
  if constexpr (kCount == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    to[0] = two.x;
    to[1] = two.y;
  } else {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
  }
}
template <int kCount>
__device__ __forceinline__ void load_widened(const uint16_t* from, float (&to)[kCount]) {
  __half2 pairs[kCount / 2];
  if constexpr (kCount == 2) {
    pairs[0] = *reinterpret_cast<const __half2*>(from);
  } else if constexpr (kCount == 4) {
    const uint2 word = *reinterpret_cast<const uint2*>(from);
    memcpy(pairs, &word, sizeof word);
  } else {
    const uint4 word = *reinterpret_cast<const uint4*>(from);
    memcpy(pairs, &word, sizeof word);
  }
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float2 two = __half22float2(pairs[i]);
    to[2 * i] = two.x;
    to[2 * i + 1] = two.y;
  }
}

// A group of a lane's keys in registers (dot_products).
template <class S, class Element>
struct KeyGroup {
  static constexpr int kGroupWords = S::kLaneDims / S::kPerWord;
  float k[S::kPositions][kGroupWords][S::kPerWord];  // in the order of the tile

  __device__ __forceinline__ KeyGroup(const uint4* staged, int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // The stored order has the groups in bit-reversed order as well.
    const int first = static_cast<int>(__brev(group) >> 29) * kGroupWords;
#pragma unroll
    for (int p = 0; p < S::kPositions; ++p) {
#pragma unroll
      for (int w = 0; w < kGroupWords; ++w) {
        const uint4* from = staged + key_word<S>(lane + 32 * p, first + w);
        load_widened(reinterpret_cast<const Element*>(from), k[p][w]);
      }
    }
  }

  __device__ __forceinline__ float4 operator()(int p, int i) const {
    return make_float4(stored(p, i), stored(p, i + 1), stored(p, i + 2), stored(p, i + 3));
  }

 private:
  __device__ __forceinline__ float stored(int p, int i) const {
    const int at = reverse_bits<bits_below(S::kLaneDims)>(i);
    return k[p][at / S::kPerWord][at % S::kPerWord];
  }
};

// A lane's sums over the positions of a chunk, in ascending order: of the weights, for query
// lane % kQueries, and of its own dimensions of the weighted values, for all.
template <class S>
struct LaneSums {
  float sum = 0.0f;
  float o[S::kQueries][S::kGroups][S::kVector] = {};

  // The first of the dimensions of a group.
  __device__ static int dimension(int group) {
    return (group * 32 + static_cast<int>(threadIdx.x) % 32) * S::kVector;
  }

  // Of `count` positions, up to a multiple of four.
  template <class Element>
  __device__ __forceinline__ void add(const float* weights, const Element* values, int count) {
    const float* lane_weights =
        weights + static_cast<int>(threadIdx.x) % 32 % S::kQueries * S::kWeightStride;
#pragma unroll 2
    for (int j = 0; j < count; j += 4) {
      float v[4][S::kGroups][S::kVector];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int g = 0; g < S::kGroups; ++g) {
          load_widened(values + (j + n) * S::kDims + dimension(g), v[n][g]);
        }
      }
      const float4 p = *reinterpret_cast<const float4*>(lane_weights + j);
      sum = add_in_order(sum, p);
#pragma unroll
      for (int q = 0; q < S::kQueries; ++q) {
        float w[4];
        load_widened(weights + q * S::kWeightStride + j, w);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int g = 0; g < S::kGroups; ++g) {
#pragma unroll
            for (int i = 0; i < S::kVector; ++i) o[q][g][i] = fmaf(w[n], v[n][g][i], o[q][g][i]);
          }
        }
      }
    }
  }
};

template <int kCount>
__device__ __forceinline__ void store(float* to, const float (&values)[kCount]) {
  if constexpr (kCount == 2) {
    *reinterpret_cast<float2*>(to) = make_float2(values[0], values[1]);
  } else {
    *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
  }
}

// A chunk, by a team. Copies of its first keys into its memory have been started. `values` is where
// the values go: the team's own memory again, or memory for which their copies have been started.
template <class S, class Element>
__device__ void attend(const Element* key_tile, const Element* value_tile, int count, int head_dim,
                       float scale, const float* queries, TeamMemory<S>& own, uint4* values) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_query = team_thread<S>() / 32 * S::kQueries;  // of the warp
  float* const weights = own.weights + first_query * S::kWeightStride;
  float score[S::kParts][S::kQueries][S::kPositions];
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    if (count > part * S::kStaged) {
      if (part == 0) {
        wait_for_older_copies();
      } else {
        const int first = part * S::kStaged;
        fetch_keys<S>(key_tile, first, first, min(count, first + S::kStaged), head_dim, own.staged);
        wait_for_copies();
      }
      team_sync<S>();  // the keys are there
      dot_products<S, S::kLaneDims>(
          queries + first_query * S::kDims,
          [&](int n) { return KeyGroup<S, Element>(own.staged, n); }, score[part]);
      team_sync<S>();  // the team is done with them
    }
  }
  const auto fetch = [&](int first) {
    const int end = min(count, first + S::kStaged);
    fetch_values<S>(value_tile, first, first, end, head_dim, values);
    pad_values<S, Element>(end - first, values);
  };
  if (values == own.staged) fetch(0);
  const float largest = softmax_weights<S>(score, count, scale, weights);

  LaneSums<S> sums;
#pragma unroll 1
  for (int first = 0; first < count; first += S::kStaged) {
    if (first > 0) fetch(first);
    wait_for_copies();
    team_sync<S>();  // the values are there, and the weights
    sums.add(weights + first, reinterpret_cast<const Element*>(values),
             min(S::kStaged, count - first));
    team_sync<S>();  // the team is done with the values
  }

  if (lane < S::kQueries) {
    own.max[first_query + lane] = largest;
    own.sum[first_query + lane] = sums.sum;
  }
  float* state = reinterpret_cast<float*>(own.staged) + first_query * S::kDims;
#pragma unroll
  for (int q = 0; q < S::kQueries; ++q) {
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) {
      store(state + q * S::kDims + sums.dimension(g), sums.o[q][g]);
    }
  }
}

// Merges the states of a round's chunks, which the first `chunks` teams have left, into that of
// query q, by a warp; `out` is null but after the last round.
template <class S>
__device__ void merge(const TeamMemory<S>* teams, int chunks, bool first_round, int q, int head_dim,
                      RowMemory<S>& row, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float max = -INFINITY;
  float sum = 0.0f;
  float o[S::kGroups][S::kVector] = {};
  float* const row_o = row.o + q * S::kDims;
  if (!first_round) {
    max = row.max[q];
    sum = row.sum[q];
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) load_widened(row_o + LaneSums<S>::dimension(g), o[g]);
  }

  // Lane c has the factors of chunk c.
  const float chunk_max = lane < chunks ? teams[lane].max[q] : -INFINITY;
  float earlier = max;
#pragma unroll 2
  for (int c = 0; c < chunks - 1; ++c) {
    const float other = __shfl_sync(kAllLanes, chunk_max, c);
    if (c < lane) earlier = fmaxf(earlier, other);
  }
  const MergeFactors factors(earlier, chunk_max);
#pragma unroll 2
  for (int c = 0; c < chunks; ++c) {
    const float a = __shfl_sync(kAllLanes, factors.a, c);
    const float b = __shfl_sync(kAllLanes, factors.b, c);
    const bool starts = first_round && c == 0;
    const float own_sum = teams[c].sum[q];
    sum = starts ? own_sum : merged(sum, a, own_sum, b);
    const float* state = reinterpret_cast<const float*>(teams[c].staged) + q * S::kDims;
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) {
      float own[S::kVector];
      load_widened(state + LaneSums<S>::dimension(g), own);
#pragma unroll
      for (int i = 0; i < S::kVector; ++i) {
        o[g][i] = starts ? own[i] : merged(o[g][i], a, own[i], b);
      }
    }
  }

  if (out == nullptr) {
    __syncwarp();  // all lanes have read the state
    if (lane == chunks - 1) {
      row.max[q] = factors.max;
      row.sum[q] = sum;
    }
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) store(row_o + LaneSums<S>::dimension(g), o[g]);
    return;
  }
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g) {
    const int d = LaneSums<S>::dimension(g);
#pragma unroll
    for (int i = 0; i < S::kVector; ++i) o[g][i] = o[g][i] / sum;
    if constexpr (S::kExact) {
      store(out + d, o[g]);
    } else {
#pragma unroll
      for (int i = 0; i < S::kVector; ++i) {
        if (d + i < head_dim) out[d + i] = o[g][i];
      }
    }
  }
}

// The context of a block's row: its chunks of keys and values in the cache.
template <class S, class Element>
struct RowContext {
  const KvCache& kv;
  int kv_head;
  int head_dim;
  int sequence;
  int length;

  __device__ __forceinline__ RowContext(const AttentionArgs& args, const QueryBlock& block)
      : kv(args.kv),
        kv_head(block.kv_head),
        head_dim(S::kExact ? S::kDims : args.kv.head_dim),
        sequence(args.places.sequence[block.first_row]),
        length(args.places.position[block.first_row] + 1) {}

  __device__ __forceinline__ int chunks() const {
    return (length + kAttentionChunk - 1) / kAttentionChunk;
  }
  __device__ __forceinline__ size_t tile_of(int chunk) const {
    return kv.tile_offset(sequence, chunk * kAttentionChunk, kv_head);
  }
  __device__ __forceinline__ const Element* keys_at(size_t tile) const {
    return static_cast<const Element*>(kv.k) + tile;
  }
  __device__ __forceinline__ const Element* values_at(size_t tile) const {
    return static_cast<const Element*>(kv.v) + tile;
  }
  __device__ __forceinline__ int count_of(int chunk) const {
    return min(kAttentionChunk, length - chunk * kAttentionChunk);
  }
  // By one thread of a team, `count` positions into the L2 cache.
  __device__ __forceinline__ void prefetch(size_t tile, int count) const {
    if (team_thread<S>() != 0) return;
    const int bytes = count * head_dim * static_cast<int>(sizeof(Element)) / 16 * 16;
    prefetch_to_l2(keys_at(tile), bytes);
    prefetch_to_l2(values_at(tile), bytes);
  }
};

// Attends to a row's context for the query heads of `block`, by all threads. `memory`: TeamMemory
// of every team, then RowMemory.
template <class S, class Element>
__device__ __forceinline__ void attend_row(const AttentionArgs& args, const QueryBlock& block,
                                           int group, float scale, uint4* memory) {
  // Where every block has an SM of its own the kernels after this one come later: they would crowd
  // together on the same SMs, and fetch their weights when this one fetches its queries.
  constexpr bool kNextStartsLater = S::kTeam > 1;
  if (!kNextStartsLater) let_next_start();
  const int t = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int team = t / S::kTeamThreads;
  const int teams = threads / S::kTeamThreads;
  TeamMemory<S>* const all = reinterpret_cast<TeamMemory<S>*>(memory);
  TeamMemory<S>& own = all[team];
  RowMemory<S>& row = *reinterpret_cast<RowMemory<S>*>(all + teams);
  const RowContext<S, Element> context(args, block);
  const int head_dim = context.head_dim;
  const int length = context.length;
  const int chunks = context.chunks();

  // Of a short context the values need not wait for the keys' place: they take that of a team that
  // has no chunk.
  const bool apart = 2 * chunks <= teams;
  uint4* const values = apart && team < chunks ? all[team + chunks].staged : own.staged;
  size_t tile = 0;  // of the team's chunk
  int staged = 0;   // of its positions, at first
  // Of those: only the row's last key and value are written by this pass. (Where a key is no whole
  // number of sectors of 32 bytes, plain loads could leave a part of that last one in the L1
  // cache.)
  int earlier = 0;
  if (team < chunks) {
    tile = context.tile_of(team);
    staged = min(S::kStaged, context.count_of(team));
    if (S::kExact) earlier = min(staged, length - 1 - team * kAttentionChunk);
    context.prefetch(tile, context.count_of(team));
    fetch_keys<S>(context.keys_at(tile), 0, 0, earlier, head_dim, own.staged);
    if (apart) fetch_values<S>(context.values_at(tile), 0, 0, earlier, head_dim, values);
  }
  wait_for_previous();
  if (kNextStartsLater) let_next_start();
  if (team < chunks) {
    fetch_keys<S>(context.keys_at(tile), 0, earlier, staged, head_dim, own.staged);
    end_of_copies();  // attend() does not wait for what follows
    if (apart) {
      fetch_values<S>(context.values_at(tile), 0, earlier, staged, head_dim, values);
      pad_values<S, Element>(staged, values);
    }
    end_of_copies();
  }
  load_queries<S>(args, block, group, threads, row.queries);
  __syncthreads();

#pragma unroll 1
  for (int first = 0; first < chunks; first += teams) {
    const int chunk = first + team;
    const int next = chunk + teams;
    if (next < chunks) context.prefetch(context.tile_of(next), context.count_of(next));
    if (chunk < chunks) {
      attend<S>(context.keys_at(tile), context.values_at(tile), context.count_of(chunk), head_dim,
                scale, row.queries, own, values);
    }
    __syncthreads();  // the states of the round are there
    const bool last = first + teams >= chunks;
#pragma unroll 1
    for (int q = t / 32; q < block.heads; q += threads / 32) {
      float* out =
          args.out + (static_cast<size_t>(block.first_row) * static_cast<size_t>(args.heads) +
                      static_cast<size_t>(block.kv_head * group + block.first_head + q)) *
                         static_cast<size_t>(head_dim);
      merge(all, min(teams, chunks - first), first == 0, q, head_dim, row, last ? out : nullptr);
    }
    if (last) break;
    __syncthreads();  // the states may be overwritten
    if (next < chunks) {
      tile = context.tile_of(next);
      fetch_keys<S>(context.keys_at(tile), 0, 0, min(S::kStaged, context.count_of(next)), head_dim,
                    own.staged);
      end_of_copies();
      end_of_copies();  // no values
    }
  }
}

// Block (r, h, i): row r, kv head h, tile i of its query heads.
template <class S, class Element>
__global__ void __launch_bounds__(S::kTeamThreads* S::kMaxTeams, 1)
    batch_kernel(AttentionArgs args, int group, int tile_heads, float scale) {
  extern __shared__ uint4 memory[];
  QueryBlock block;
  block.first_head = static_cast<int>(blockIdx.z) * tile_heads;
  block.heads = min(tile_heads, group - block.first_head);
  block.kv_head = static_cast<int>(blockIdx.y);
  block.first_row = static_cast<int>(blockIdx.x);
  block.rows = 1;
  attend_row<S, Element>(args, block, group, scale, memory);
}

template <class Element, int kDims>
void launch_dims(const BatchPlan& plan, const AttentionArgs& args, cudaStream_t stream) {
  const auto launch_as = [&](auto shape) {
    using S = decltype(shape);
    static_assert(sizeof(TeamMemory<S>) == S::kCut.team_bytes() &&
                  sizeof(RowMemory<S>) == S::kCut.row_bytes());
    launch(batch_kernel<S, Element>, plan.launch, stream, args, args.heads / args.kv.kv_heads,
           plan.tile_heads, attention_scale(args.kv.head_dim));
  };
  if (!plan.exact) {
    launch_as(BatchShape<kDims, false, 4, 1, Element>());
  } else if (plan.cut.team == 2) {
    launch_as(BatchShape<kDims, true, 1, 2, Element>());
  } else if (plan.cut.queries == 2) {
    launch_as(BatchShape<kDims, true, 2, 1, Element>());
  } else if (plan.cut.queries == 3) {
    launch_as(BatchShape<kDims, true, 3, 1, Element>());
  } else {
    launch_as(BatchShape<kDims, true, 4, 1, Element>());
  }
}

template <class Element>
void launch_element(const BatchPlan& plan, const AttentionArgs& args, cudaStream_t stream) {
  if (plan.cut.dims == 64) {
    launch_dims<Element, 64>(plan, args, stream);
  } else if (plan.cut.dims == 128) {
    launch_dims<Element, 128>(plan, args, stream);
  } else {
    launch_dims<Element, 256>(plan, args, stream);
  }
}

}  // namespace

void launch_attention(const BatchPlan& plan, const AttentionArgs& args, cudaStream_t stream) {
  if (args.kv.type == KvType::kF16) {
    launch_element<uint16_t>(plan, args, stream);
  } else {
    launch_element<float>(plan, args, stream);
  }
}

}  // namespace edgellm::cuda
