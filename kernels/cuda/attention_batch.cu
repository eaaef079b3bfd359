// Attention of rows that are each alone in their sequence (kernels/ops.h): continuous batching.
// Bound by the memory, if all its parts overlap.
//
// A block takes a row with the query heads of one kv head. Its warps each take a chunk of the
// context and leave its state in shared memory; the block merges a round of them in ascending order
// into the state of the row. Nothing depends on which warp made a chunk's state, nor on how many
// warps there are.
//
// Each key is read by one lane and each value by one or two, so neither is widened in advance: keys
// wait in shared memory as they are, values come straight from the cache into registers.
#include "kernels/cuda/attention_batch.h"
#include "kernels/cuda/attention_chunk.cuh"
#include "kernels/cuda/launch.cuh"

namespace edgellm::cuda {
namespace {

// Positions whose keys fit into what a warp has of the shared memory.
template <int kDims, class Element>
inline constexpr int kStagedOf = kDims * sizeof(Element) <= 256 ? kAttentionChunk : 32;

// kExact: the heads have exactly kDims dimensions.
template <int kDims_, bool kExact_, int kQueries_, class Element>
struct Shape : ChunkShape<kDims_, kQueries_, kStagedOf<kDims_, Element>> {
  using Chunk = ChunkShape<kDims_, kQueries_, kStagedOf<kDims_, Element>>;
  static constexpr bool kExact = kExact_;
  static constexpr int kBlockQueries = kQueries_;

  // The dimensions of a key that are together (key_index), an aligned group of the stored order.
  static constexpr int kLaneDims = kDims_ / kKeyLanes;
  static constexpr int kPerWord = 16 / sizeof(Element);
  // 16-byte words of a key; their stride takes neighbouring positions to other banks.
  static constexpr int kKeyWords = kDims_ / kPerWord;
  static constexpr int kKeyStride = kKeyWords + 1;
  static constexpr int kWarpWords = Chunk::kStaged * kKeyStride;
  static constexpr int kStateFloats = kQueries_ * kDims_;
  static_assert(4 * kWarpWords >= Chunk::kWeightRows * Chunk::kWeightStride + kStateFloats);

  // Warps that an SM of compute capability 9.0 has shared memory for, in blocks of four at least:
  // one that merges or waits for memory leaves the SM to the others.
  static constexpr int kWarpBytes = 16 * kWarpWords;
  static constexpr int kMaxWarps = kWarpBytes <= 10 * 1024 ? 20 : kWarpBytes <= 18 * 1024 ? 12 : 6;
  static constexpr int kMaxBlocksPerSm = kMaxWarps / 4;

  // Positions whose values a lane has on their way, as many as the registers of so many warps hold.
  static constexpr int kBatch = kDims_ * sizeof(Element) > 256          ? 4
                                : kDims_ == 128 && sizeof(Element) == 2 ? 16
                                                                        : 8;

  static constexpr size_t shared_bytes(int warps) {
    return static_cast<size_t>(warps * kWarpBytes) + 2 * sizeof(float) * kStateFloats;
  }
};

// Starts to copy the keys of the chunk's positions first .. first + kStaged - 1, as far as they are
// below `count`, into the warp's shared memory; absent dimensions are zeros.
template <class S, class Element>
__device__ void fetch_keys(const Element* tile, int first, int count, int head_dim, uint4* staged) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int positions = min(S::kStaged, count - first);
  if constexpr (S::kExact) {
    const uint4* from = reinterpret_cast<const uint4*>(tile + first * S::kDims);
#pragma unroll 8
    for (int i = lane; i < positions * S::kKeyWords; i += 32) {
      copy_async(staged + i / S::kKeyWords * S::kKeyStride + i % S::kKeyWords, from + i);
    }
  } else {
    Element* to = reinterpret_cast<Element*>(staged);
#pragma unroll 4
    for (int i = lane; i < positions * S::kDims; i += 32) {
      const int position = i / S::kDims;
      const int place = i % S::kDims;
      const int d = place % S::kLaneDims * kKeyLanes + place / S::kLaneDims;
      to[position * S::kKeyStride * S::kPerWord + place] =
          d < head_dim ? tile[key_index(first + position, d, head_dim)] : Element{0};
    }
  }
}

// A group of a lane's keys in registers (dot_products).
template <class S, class Element>
struct KeyGroup {
  float k[S::kPositions][S::kLaneDims];  // in the order of the tile

  __device__ __forceinline__ KeyGroup(const uint4* staged, int group) {
    constexpr int kWords = S::kLaneDims / S::kPerWord;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // The stored order has the groups, too, in bit-reversed order.
    const uint4* from =
        staged + lane * S::kKeyStride + static_cast<int>(__brev(group) >> 29) * kWords;
#pragma unroll
    for (int p = 0; p < S::kPositions; ++p) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const uint4 word = from[p * 32 * S::kKeyStride + w];
        Element elements[S::kPerWord];
        memcpy(elements, &word, sizeof word);
#pragma unroll
        for (int i = 0; i < S::kPerWord; ++i) k[p][w * S::kPerWord + i] = widened(elements[i]);
      }
    }
  }

  __device__ __forceinline__ float4 operator()(int p, int i) const {
    constexpr int kBits = bits_below(S::kLaneDims);
    return make_float4(k[p][reverse_bits<kBits>(i)], k[p][reverse_bits<kBits>(i + 1)],
                       k[p][reverse_bits<kBits>(i + 2)], k[p][reverse_bits<kBits>(i + 3)]);
  }
};

// A lane's values at kBatch positions, on their way from the cache.
template <class S, class Element>
struct ValueBatch {
  using Four = typename FourOf<Element>::Type;
  Four fours[S::kBatch][S::kFours];

  // Positions `first` .. of the chunk; -0 from `count` on, which with a weight of +0 changes no
  // sum, not even one that is -0.
  __device__ __forceinline__ void fetch(const Element* tile, int first, int count, int head_dim,
                                        int own_d) {
    const Element* from = tile + value_index(first, own_d, head_dim);
#pragma unroll
    for (int n = 0; n < S::kBatch; ++n) {
#pragma unroll
      for (int f = 0; f < S::kFours; ++f) {
        constexpr int kStep = 4 * S::kLanes;
        if (first + n >= count) {
          fours[n][f] = same(-0.0f);
        } else if constexpr (S::kExact) {
          fours[n][f] = *reinterpret_cast<const Four*>(from + n * S::kDims + f * kStep);
        } else {
          fours[n][f] = some(from + n * head_dim + f * kStep, head_dim - own_d - f * kStep);
        }
      }
    }
  }

 private:
  // Only the first `count`.
  __device__ static Four some(const Element* values, int count) {
    Element elements[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) elements[i] = i < count ? values[i] : Element{0};
    Four four;
    memcpy(&four, elements, sizeof four);
    return four;
  }
  __device__ static Four same(float value) {
    if constexpr (sizeof(Element) == 4) {
      return make_float4(value, value, value, value);
    } else {
      const uint32_t half = to_half(value);
      return make_uint2(half << 16 | half, half << 16 | half);
    }
  }
};

template <int kMaxWarps, int kQueries>
struct Stats {
  float max[kMaxWarps][kQueries];  // of the round's chunks
  float sum[kMaxWarps][kQueries];
  float a[kMaxWarps][kQueries];  // factors of their merge
  float b[kMaxWarps][kQueries];
  float row_max[kQueries];  // of all chunks so far
  float row_sum[kQueries];
};

// A chunk, by a warp. Its first keys are on their way into `memory`, which then holds weights and
// o[kQueries][kDims] behind them.
template <class S, class Element>
__device__ void attend(const Element* key_tile, const Element* value_tile, int count, int head_dim,
                       float scale, const float* queries, uint4* memory, float* max, float* sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const OwnSums<S> own;
  ValueBatch<S, Element> next;
  next.fetch(value_tile, 0, count, head_dim, own.d);

  float score[S::kParts][S::kQueries][S::kPositions];
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    if (count > part * S::kStaged) {
      if (part > 0) fetch_keys<S>(key_tile, part * S::kStaged, count, head_dim, memory);
      wait_for_copies();
      __syncwarp();  // the keys are there
      dot_products<S, S::kLaneDims>(
          queries, [&](int n) { return KeyGroup<S, Element>(memory, n); }, score[part]);
      __syncwarp();  // the warp is done with them
    }
  }
  float* weights = reinterpret_cast<float*>(memory);
  const float largest = softmax_weights<S>(score, count, scale, weights);
  __syncwarp();  // the weights are there

  ChunkSums<S> sums(own, weights);
#pragma unroll 1
  for (int first = 0; first < count; first += S::kBatch) {
    const ValueBatch<S, Element> batch = next;
    next.fetch(value_tile, first + S::kBatch, count, head_dim, own.d);
#pragma unroll
    for (int n = 0; n < S::kBatch; n += 4) {
      float4 four[4][S::kFours];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int f = 0; f < S::kFours; ++f) four[i][f] = widened(batch.fours[n + i][f]);
      }
      sums.add_four(first + n, four);
    }
  }

  if (lane < S::kQueries) {
    max[lane] = largest;
    sum[lane] = sums.sum;
  }
  float* state = weights + S::kWeightRows * S::kWeightStride;
#pragma unroll
  for (int q = 0; q < S::kOwn; ++q) {
    if (own.query + q >= S::kQueries) continue;
#pragma unroll
    for (int f = 0; f < S::kFours; ++f) {
      *reinterpret_cast<float4*>(state + (own.query + q) * S::kDims + own.d + f * 4 * S::kLanes) =
          sums.o[q][f];
    }
  }
}

template <class S, class Element>
__global__ void __launch_bounds__(32 * S::kMaxWarps, 1)
    batch_kernel(AttentionArgs args, int tile_heads, float scale) {
  extern __shared__ uint4 memory[];  // a warp's, [warps][kWarpWords]; queries; the row's o
  __shared__ Stats<S::kMaxWarps, S::kQueries> stats;
  let_next_start();
  const int t = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int warp = t / 32;
  const int warps = threads / 32;
  uint4* const own_memory = memory + warp * S::kWarpWords;
  float* const queries = reinterpret_cast<float*>(memory + warps * S::kWarpWords);
  float* const row_o = queries + S::kStateFloats;

  const int head_dim = S::kExact ? S::kDims : args.kv.head_dim;
  const int group = args.heads / args.kv.kv_heads;
  const int head_tiles = (group + tile_heads - 1) / tile_heads;
  const int item = static_cast<int>(blockIdx.x);
  Place place;
  place.first_head = item % head_tiles * tile_heads;
  place.heads = min(tile_heads, group - place.first_head);
  place.kv_head = item / head_tiles % args.kv.kv_heads;
  place.first_row = item / head_tiles / args.kv.kv_heads;
  place.rows = 1;
  const int sequence = args.places.sequence[place.first_row];
  const int length = args.places.position[place.first_row] + 1;
  const int chunks = (length + kAttentionChunk - 1) / kAttentionChunk;

  const Element* key_tile = nullptr;  // of the warp's chunk
  const Element* value_tile = nullptr;
  const auto find_tiles = [&](int chunk) {
    const size_t tile = args.kv.tile_offset(sequence, chunk * kAttentionChunk, place.kv_head);
    key_tile = static_cast<const Element*>(args.kv.k) + tile;
    value_tile = static_cast<const Element*>(args.kv.v) + tile;
  };
  const auto count_of = [&](int chunk) {
    return min(kAttentionChunk, length - chunk * kAttentionChunk);
  };
  const auto prefetch = [&](const Element* tile, int count) {
    const int bytes = count * head_dim * static_cast<int>(sizeof(Element));
    if (t % 32 == 0) prefetch_to_l2(tile, bytes / 16 * 16);
  };
  if (warp < chunks) {
    find_tiles(warp);
    prefetch(key_tile, count_of(warp));
    prefetch(value_tile, count_of(warp));
  }
  wait_for_previous();
  if (warp < chunks) fetch_keys<S>(key_tile, 0, count_of(warp), head_dim, own_memory);
  load_queries<S>(args, place, group, threads, queries);
  if (t < S::kQueries) stats.row_max[t] = -INFINITY;
  __syncthreads();

#pragma unroll 1
  for (int first = 0; first < chunks; first += warps) {
    const int chunk = first + warp;
    if (chunk < chunks) {
      attend<S>(key_tile, value_tile, count_of(chunk), head_dim, scale, queries, own_memory,
                stats.max[warp], stats.sum[warp]);
    }
    __syncthreads();  // the states of the round are there
    const int round = min(warps, chunks - first);
    if (t < round * S::kQueries) {
      const int c = t / S::kQueries;
      const int q = t % S::kQueries;
      float earlier = stats.row_max[q];
      for (int i = 0; i < c; ++i) earlier = fmaxf(earlier, stats.max[i][q]);
      const MergeFactors factors(earlier, stats.max[c][q]);
      stats.a[c][q] = factors.a;
      stats.b[c][q] = factors.b;
    }
    __syncthreads();  // and the factors
    const float* states =
        reinterpret_cast<const float*>(memory) + S::kWeightRows * S::kWeightStride;
    for (int i = t; i < S::kStateFloats; i += threads) {
      const int q = i / S::kDims;
      float o = row_o[i];
      for (int c = 0; c < round; ++c) {
        const float own = states[c * S::kWarpWords * 4 + i];
        o = first + c == 0 ? own : merged(o, stats.a[c][q], own, stats.b[c][q]);
      }
      row_o[i] = o;
    }
    if (t < S::kQueries) {
      for (int c = 0; c < round; ++c) {
        const float own = stats.sum[c][t];
        stats.row_sum[t] =
            first + c == 0 ? own : merged(stats.row_sum[t], stats.a[c][t], own, stats.b[c][t]);
        stats.row_max[t] = fmaxf(stats.row_max[t], stats.max[c][t]);
      }
    }
    __syncthreads();  // the states may be overwritten, the row's sums are there
    const int next = chunk + warps;
    if (next < chunks) {
      find_tiles(next);
      fetch_keys<S>(key_tile, 0, count_of(next), head_dim, own_memory);
      prefetch(value_tile, count_of(next));
    }
  }

  float* out = args.out + (static_cast<size_t>(place.first_row) * static_cast<size_t>(args.heads) +
                           static_cast<size_t>(place.kv_head * group + place.first_head)) *
                              static_cast<size_t>(head_dim);
  for (int i = t; i < place.heads * S::kDims; i += threads) {
    const int q = i / S::kDims;
    const int d = i % S::kDims;
    if (d < head_dim) out[q * head_dim + d] = row_o[i] / stats.row_sum[q];
  }
}

template <int kDims, bool kExact, int kQueries, class Element>
void launch_batch(const AttentionArgs& args, int head_tiles, int tile_heads, cudaStream_t stream) {
  using S = Shape<kDims, kExact, kQueries, Element>;
  const int blocks = args.rows * args.kv.kv_heads * head_tiles;
  const int blocks_per_sm = std::clamp((blocks - 1) / multiprocessors() + 1, 1, S::kMaxBlocksPerSm);
  const int max_chunks = args.kv.blocks_per_sequence * (args.kv.block_size / kAttentionChunk);
  int warps = std::min(S::kMaxWarps / blocks_per_sm, max_chunks);
  while (warps > 1 && S::shared_bytes(warps) > max_dynamic_shared()) --warps;
  launch(batch_kernel<S, Element>, dim3(static_cast<unsigned>(blocks)),
         dim3(static_cast<unsigned>(32 * warps)), S::shared_bytes(warps), stream, args, tile_heads,
         attention_scale(args.kv.head_dim));
}

template <int kDims, class Element>
void batch_of(const AttentionArgs& args, cudaStream_t stream) {
  // A group of more than four heads in equal tiles of up to four.
  const int group = args.heads / args.kv.kv_heads;
  const int head_tiles = (group + 3) / 4;
  const int tile_heads = (group + head_tiles - 1) / head_tiles;
  if (args.kv.head_dim != kDims) {
    launch_batch<kDims, false, 4, Element>(args, head_tiles, tile_heads, stream);
  } else if (tile_heads <= 2) {
    launch_batch<kDims, true, 2, Element>(args, head_tiles, tile_heads, stream);
  } else if (tile_heads == 3) {
    launch_batch<kDims, true, 3, Element>(args, head_tiles, tile_heads, stream);
  } else {
    launch_batch<kDims, true, 4, Element>(args, head_tiles, tile_heads, stream);
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
