// Attention of rows that are each alone in their sequence (kernels/ops.h): continuous batching.
// Bound by the memory and by float32 arithmetic alike, if all blocks are there at once.
//
// A block takes a row with query heads of one kv head. Its warps each take a chunk of the context
// and leave its state in shared memory; then a warp for each query merges a round of them in
// ascending order. Nothing depends on which warp made a chunk's state, nor on how many warps there
// are.
//
// Keys and values wait in shared memory as they are: each key is read by one lane, each value, too.
#include <cuda_fp16.h>

#include "kernels/cuda/attention_batch.h"
#include "kernels/cuda/attention_chunk.cuh"
#include "kernels/cuda/launch.cuh"

namespace edgellm::cuda {
namespace {

// Positions whose keys or values fit into what a warp has of the shared memory.
template <int kDims, class Element>
inline constexpr int kStagedOf = kDims * sizeof(Element) <= 256 ? kAttentionChunk : 32;

// kExact: the heads have exactly kDims dimensions.
template <int kDims_, bool kExact_, int kQueries_, class Element>
struct Shape : ChunkShape<kDims_, kQueries_, kStagedOf<kDims_, Element>> {
  static constexpr bool kExact = kExact_;
  static constexpr int kBlockQueries = kQueries_;

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

// Shared memory of a warp.
template <class S>
struct alignas(16) WarpMemory {
  uint4 staged[S::kStaged * S::kWords];  // keys, then values, then o [kQueries][kDims] of the chunk
  float weights[S::kQueries * S::kWeightStride];
  float max[S::kQueries];  // of the chunk
  float sum[S::kQueries];
};
// Shared memory of a block's row.
template <class S>
struct alignas(16) RowMemory {
  float queries[S::kQueries * S::kDims];
  // The state after the rounds so far. Query q is warp (q % warps)'s.
  float o[S::kQueries * S::kDims];
  float max[S::kQueries];
  float sum[S::kQueries];
};

template <class S>
constexpr size_t shared_bytes(int warps) {
  return static_cast<size_t>(warps) * sizeof(WarpMemory<S>) + sizeof(RowMemory<S>);
}

// Blocks of four warps for which an SM of compute capability 9.0 has shared memory: 228 KiB, of
// which a block takes 1 KiB more than it asks for.
template <class S>
inline constexpr int kMaxBlocksPerSm =
    static_cast<int>(228 * 1024 / ((shared_bytes<S>(4) + 127) / 128 * 128 + 1024));
template <class S>
inline constexpr int kMaxWarps = 4 * kMaxBlocksPerSm<S>;

// Where word `word` of the key of a position lies: neighbouring positions take the same word from
// other banks.
template <class S>
__device__ __forceinline__ int key_place(int position, int word) {
  return position * S::kWords + (word ^ position % 8);
}

// Starts to copy the keys of the chunk's positions begin .. end - 1 into the warp's shared memory,
// where those from `first` on are kept; absent dimensions are zeros.
template <class S, class Element>
__device__ void fetch_keys(const Element* tile, int first, int begin, int end, int head_dim,
                           uint4* staged) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (S::kExact) {
    const uint4* from = reinterpret_cast<const uint4*>(tile);
#pragma unroll 2
    for (int i = begin * S::kWords + lane; i < end * S::kWords; i += 32) {
      copy_async(staged + key_place<S>(i / S::kWords - first, i % S::kWords), from + i);
    }
  } else {
    Element* to = reinterpret_cast<Element*>(staged);
#pragma unroll 2
    for (int i = begin * S::kDims + lane; i < end * S::kDims; i += 32) {
      const int position = i / S::kDims;
      const int place = i % S::kDims;
      const int d = place % S::kLaneDims * kKeyLanes + place / S::kLaneDims;
      to[key_place<S>(position - first, place / S::kPerWord) * S::kPerWord + place % S::kPerWord] =
          d < head_dim ? tile[key_index(position, d, head_dim)] : Element{0};
    }
  }
}

// The same for values, [position][kDims].
template <class S, class Element>
__device__ void fetch_values(const Element* tile, int first, int begin, int end, int head_dim,
                             uint4* staged) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (S::kExact) {
    const uint4* from = reinterpret_cast<const uint4*>(tile);
    uint4* to = staged - first * S::kWords;
#pragma unroll 2
    for (int i = begin * S::kWords + lane; i < end * S::kWords; i += 32)
      copy_async(to + i, from + i);
  } else {
    Element* to = reinterpret_cast<Element*>(staged) - first * S::kDims;
#pragma unroll 2
    for (int i = begin * S::kDims + lane; i < end * S::kDims; i += 32) {
      const int d = i % S::kDims;
      to[i] = d < head_dim ? tile[value_index(i / S::kDims, d, head_dim)] : Element{0};
    }
  }
}

// Up to a multiple of four the values of so many positions are followed by -0, which with a weight
// of +0 changes no sum, not even one that is -0.
template <class S, class Element>
__device__ void pad_values(int positions, uint4* staged) {
  constexpr uint32_t kZeros = sizeof(Element) == 2 ? 0x80008000u : 0x80000000u;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int i = positions * S::kWords + lane; i < (positions + 3) / 4 * 4 * S::kWords; i += 32) {
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
    // The stored order has the groups, too, in bit-reversed order.
    const int first = static_cast<int>(__brev(group) >> 29) * kGroupWords;
#pragma unroll
    for (int p = 0; p < S::kPositions; ++p) {
#pragma unroll
      for (int w = 0; w < kGroupWords; ++w) {
        const uint4* from = staged + key_place<S>(lane + 32 * p, first + w);
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
      sum = (((sum + p.x) + p.y) + p.z) + p.w;
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

// A chunk, by a warp. Its first keys are on their way into its memory. `values`: where the values
// go, either there, too, or where the first of them are already on their way.
template <class S, class Element>
__device__ void attend(const Element* key_tile, const Element* value_tile, int count, int head_dim,
                       float scale, const float* queries, WarpMemory<S>& own, uint4* values) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
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
      __syncwarp();  // the keys are there
      dot_products<S, S::kLaneDims>(
          queries, [&](int n) { return KeyGroup<S, Element>(own.staged, n); }, score[part]);
      __syncwarp();  // the warp is done with them
    }
  }
  const auto fetch = [&](int first) {
    const int end = min(count, first + S::kStaged);
    fetch_values<S>(value_tile, first, first, end, head_dim, values);
    pad_values<S, Element>(end - first, values);
  };
  if (values == own.staged) fetch(0);
  const float largest = softmax_weights<S>(score, count, scale, own.weights);

  LaneSums<S> sums;
#pragma unroll 1
  for (int first = 0; first < count; first += S::kStaged) {
    if (first > 0) fetch(first);
    wait_for_copies();
    __syncwarp();  // the values are there, and the weights
    sums.add(own.weights + first, reinterpret_cast<const Element*>(values),
             min(S::kStaged, count - first));
    __syncwarp();  // the warp is done with the values
  }

  if (lane < S::kQueries) {
    own.max[lane] = largest;
    own.sum[lane] = sums.sum;
  }
  float* state = reinterpret_cast<float*>(own.staged);
#pragma unroll
  for (int q = 0; q < S::kQueries; ++q) {
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) {
      store(state + q * S::kDims + sums.dimension(g), sums.o[q][g]);
    }
  }
}

// Merges the states of a round's chunks, which the first `chunks` warps have left, into that of
// query q, by a warp; `out` is null but after the last round.
template <class S>
__device__ void merge(const WarpMemory<S>* warps, int chunks, bool first_round, int q, int head_dim,
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
  const float chunk_max = lane < chunks ? warps[lane].max[q] : -INFINITY;
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
    const float own_sum = warps[c].sum[q];
    sum = starts ? own_sum : merged(sum, a, own_sum, b);
    const float* state = reinterpret_cast<const float*>(warps[c].staged) + q * S::kDims;
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

// Block (r, h, i): row r, kv head h, tile i of its query heads.
template <class S, class Element>
__global__ void __launch_bounds__(32 * kMaxWarps<S>, 1)
    batch_kernel(AttentionArgs args, int group, int tile_heads, float scale) {
  extern __shared__ uint4 memory[];  // WarpMemory of every warp, RowMemory
  let_next_start();
  const int t = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warp = t / 32;
  const int warps = threads / 32;
  WarpMemory<S>* const all = reinterpret_cast<WarpMemory<S>*>(memory);
  WarpMemory<S>& own = all[warp];
  RowMemory<S>& row = *reinterpret_cast<RowMemory<S>*>(all + warps);

  const int head_dim = S::kExact ? S::kDims : args.kv.head_dim;
  Place place;
  place.first_head = static_cast<int>(blockIdx.z) * tile_heads;
  place.heads = min(tile_heads, group - place.first_head);
  place.kv_head = static_cast<int>(blockIdx.y);
  place.first_row = static_cast<int>(blockIdx.x);
  place.rows = 1;
  const int sequence = args.places.sequence[place.first_row];
  const int length = args.places.position[place.first_row] + 1;
  const int chunks = (length + kAttentionChunk - 1) / kAttentionChunk;

  const auto tile_of = [&](int chunk) {
    return args.kv.tile_offset(sequence, chunk * kAttentionChunk, place.kv_head);
  };
  const auto keys_at = [&](size_t tile) { return static_cast<const Element*>(args.kv.k) + tile; };
  const auto values_at = [&](size_t tile) { return static_cast<const Element*>(args.kv.v) + tile; };
  const auto count_of = [&](int chunk) {
    return min(kAttentionChunk, length - chunk * kAttentionChunk);
  };
  const auto prefetch = [&](size_t tile, int count) {
    if (t % 32 != 0) return;
    const int bytes = count * head_dim * static_cast<int>(sizeof(Element)) / 16 * 16;
    prefetch_to_l2(keys_at(tile), bytes);
    prefetch_to_l2(values_at(tile), bytes);
  };
  // Of a short context the values need not wait for the keys' place: they take that of a warp that
  // has no chunk.
  const bool apart = 2 * chunks <= warps;
  uint4* const values = apart && warp < chunks ? all[warp + chunks].staged : own.staged;
  // Only the last key and value of the row are written by this pass, the others by earlier ones.
  const auto earlier = [&] {
    return min(min(S::kStaged, count_of(warp)), length - 1 - warp * kAttentionChunk);
  };
  size_t tile = 0;  // of the warp's chunk
  if (warp < chunks) {
    tile = tile_of(warp);
    prefetch(tile, count_of(warp));
    fetch_keys<S>(keys_at(tile), 0, 0, earlier(), head_dim, own.staged);
    if (apart) fetch_values<S>(values_at(tile), 0, 0, earlier(), head_dim, values);
  }

  // While the block waits for its queries, a warp whose memory nobody uses goes through a chunk of
  // one position, so that the code is in the instruction cache. What it computes nobody reads.
  bool rehearsal = kStartsEarly && 2 * chunks < warps;
  int first = 0;  // chunk of the round
#pragma unroll 1
  while (true) {
    if (first == 0 && !rehearsal) {
      wait_for_previous();
      if (warp < chunks) {
        const int staged = min(S::kStaged, count_of(warp));
        fetch_keys<S>(keys_at(tile), 0, earlier(), staged, head_dim, own.staged);
        end_of_copies();  // attend() waits for the keys alone
        if (apart) {
          fetch_values<S>(values_at(tile), 0, earlier(), staged, head_dim, values);
          pad_values<S, Element>(staged, values);
        }
        end_of_copies();
      }
      load_queries<S>(args, place, group, threads, row.queries);
      __syncthreads();
    }
    const int chunk = first + warp;
    const int next = chunk + warps;
    if (next < chunks) prefetch(tile_of(next), count_of(next));
    const bool rehearses = rehearsal && warp == warps - 1;
    if (rehearsal ? rehearses : chunk < chunks) {
      attend<S>(keys_at(tile), values_at(tile), rehearsal ? 1 : count_of(chunk), head_dim, scale,
                row.queries, own, values);
    }
    __syncthreads();  // the states of the round are there
    const bool last = first + warps >= chunks;
    int q = warp;
    if (rehearsal) q = rehearses ? 0 : place.heads;
#pragma unroll 1
    for (; q < place.heads; q += warps) {
      float* out =
          args.out + (static_cast<size_t>(place.first_row) * static_cast<size_t>(args.heads) +
                      static_cast<size_t>(place.kv_head * group + place.first_head + q)) *
                         static_cast<size_t>(head_dim);
      if (rehearsal) out = row.queries;
      merge(rehearsal ? &own : all, rehearsal ? 1 : min(warps, chunks - first), first == 0, q,
            head_dim, row, last ? out : nullptr);
    }
    if (rehearsal) {
      rehearsal = false;
      __syncthreads();  // the queries' place may be overwritten
      continue;
    }
    if (last) break;
    __syncthreads();  // the states may be overwritten
    if (next < chunks) {
      tile = tile_of(next);
      fetch_keys<S>(keys_at(tile), 0, 0, min(S::kStaged, count_of(next)), head_dim, own.staged);
      end_of_copies();
      end_of_copies();  // no values
    }
    first += warps;
  }
}

template <int kDims, bool kExact, int kQueries, class Element>
void launch_batch(const AttentionArgs& args, int group, int tile_heads, cudaStream_t stream) {
  using S = Shape<kDims, kExact, kQueries, Element>;
  const int head_tiles = (group + tile_heads - 1) / tile_heads;
  const int blocks = args.rows * args.kv.kv_heads * head_tiles;
  const int blocks_per_sm = std::clamp((blocks - 1) / multiprocessors() + 1, 1, kMaxBlocksPerSm<S>);
  const int max_chunks = args.kv.blocks_per_sequence * (args.kv.block_size / kAttentionChunk);
  // Beyond max_chunks they lend their memory.
  int warps = std::min(kMaxWarps<S> / blocks_per_sm, 2 * max_chunks);
  while (warps > 1 && shared_bytes<S>(warps) > max_dynamic_shared()) --warps;
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.kv.kv_heads),
                  static_cast<unsigned>(head_tiles));
  launch(batch_kernel<S, Element>, grid, dim3(static_cast<unsigned>(32 * warps)),
         shared_bytes<S>(warps), stream, args, group, tile_heads,
         attention_scale(args.kv.head_dim));
}

template <int kDims, class Element>
void batch_of(const AttentionArgs& args, cudaStream_t stream) {
  // A group of more than four heads in equal tiles of up to four; of two where that still leaves
  // every block an SM of its own.
  const int group = args.heads / args.kv.kv_heads;
  const int most = args.rows * args.kv.kv_heads * ((group + 1) / 2) <= multiprocessors() ? 2 : 4;
  const int head_tiles = (group + most - 1) / most;
  const int tile_heads = (group + head_tiles - 1) / head_tiles;
  if (args.kv.head_dim != kDims) {
    launch_batch<kDims, false, 4, Element>(args, group, tile_heads, stream);
  } else if (tile_heads <= 2) {
    launch_batch<kDims, true, 2, Element>(args, group, tile_heads, stream);
  } else if (tile_heads == 3) {
    launch_batch<kDims, true, 3, Element>(args, group, tile_heads, stream);
  } else {
    launch_batch<kDims, true, 4, Element>(args, group, tile_heads, stream);
  }
}

template <class Element>
void batch_of(const AttentionArgs& args, cudaStream_t stream) {
  if (args.kv.head_dim <= 64) {
    batch_of<64, Element>(args, stream);
  } else if (args.kv.head_dim <= 128) {
    batch_of<128, Element>(args, stream);
  } else {
    batch_of<256, Element>(args, stream);
  }
}

}  // namespace

void attention_batch(const AttentionArgs& args, cudaStream_t stream) {
  if (args.kv.type == KvType::kF16) {
    batch_of<uint16_t>(args, stream);
  } else {
    batch_of<float>(args, stream);
  }
}

}  // namespace edgellm::cuda
