// FlashDecoding with a fixed order (kernels/ops.h): chunks of 64 positions in parallel, merged in
// ascending order.
//
// A block takes every n-th chunk of a kv head for one row, writes the chunks' states, and the block
// that finishes last merges them. Passes of many rows have a kernel of their own
// (attention_prefill.cu); the arithmetic is the same.
#include <cuda_fp16.h>

#include "kernels/cuda/attention_prefill.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"

namespace edgellm::cuda {
namespace {

// Query heads of a kv head that a block works on at a time: one warp each for the softmax.
constexpr int kMaxHeads = kWarps;
// Lanes that share a score: lane t sums dimensions t, t + 8, ..., the last three fold steps cross
// lanes.
constexpr int kScoreLanes = kKeyLanes;
// Positions that the block scores at once, and how often to cover a chunk.
constexpr int kPositions = kThreads / kScoreLanes;
constexpr int kRounds = kAttentionChunk / kPositions;

// Partial sum d of canonical_sum's products after the fold steps above Width: dimensions d,
// d + Width, ... as a binary tree over kDims products.
template <int Width, int kDims, class Product>
__device__ __forceinline__ float fold_products(const Product& product, int d) {
  if constexpr (Width == kDims) {
    return product(d);
  } else {
    return fold_products<2 * Width, kDims>(product, d) +
           fold_products<2 * Width, kDims>(product, d + Width);
  }
}

// An element of the cache, exactly.
__device__ inline float widen_element(float value) { return value; }
__device__ inline float widen_element(uint16_t value) {
  return __half2float(__ushort_as_half(value));
}

// Working memory of a block. Queries are stored as keys are: [lane][head_dim / 8, padded].
struct Shared {
  float q[kMaxHeads][256];
  float p[kMaxHeads][kAttentionChunk];
  float max[kMaxHeads];
  float a[kMaxHeads][32];  // factors of the merge, 32 chunks at a time
  float b[kMaxHeads][32];
  bool last;
};

struct Item {
  int row;
  int kv_head;
  int first_head;  // query heads first_head .. first_head + heads - 1
  int heads;
};

// What the kernels need of the workspace.
struct States {
  float* states;  // [row, head, max_chunks, head_dim + 2]
  int32_t* done;  // [row, kv head]
  int max_chunks;
};

// What a lane needs of the keys of one position: its kDims / 8 dimensions, absent ones zero.
template <class Element, int kDims>
struct KeyLane {
  static constexpr int kCount = kDims / kScoreLanes;
  float k[kCount];

  __device__ void load(const Element* tile, int position, int lane, int head_dim) {
    if (head_dim == kDims) {
      // Contiguous and aligned: 16-byte loads.
      constexpr int kPerLoad = 16 / sizeof(Element);
      const uint4* from = reinterpret_cast<const uint4*>(tile + position * kDims + lane * kCount);
#pragma unroll
      for (int i = 0; i < kCount / kPerLoad; ++i) {
        const uint4 packed = from[i];
        const Element* elements = reinterpret_cast<const Element*>(&packed);
#pragma unroll
        for (int j = 0; j < kPerLoad; ++j) k[i * kPerLoad + j] = widen_element(elements[j]);
      }
      return;
    }
#pragma unroll
    for (int m = 0; m < kCount; ++m) {
      const int d = lane + kScoreLanes * m;
      k[m] = d < head_dim ? widen_element(tile[key_index(position, d, head_dim)]) : 0.0f;
    }
  }
};

template <class Element>
struct Tile {
  const Element* keys;
  const Element* values;
  int count;  // positions in use

  __device__ Tile(const AttentionArgs& args, int row, int kv_head, int chunk) {
    const size_t at =
        args.kv.tile_offset(args.places.sequence[row], chunk * kAttentionChunk, kv_head);
    keys = static_cast<const Element*>(args.kv.k) + at;
    values = static_cast<const Element*>(args.kv.v) + at;
    count = min(kAttentionChunk, args.places.position[row] + 1 - chunk * kAttentionChunk);
  }
};

// The queries of an item, in shared.q.
template <int kDims>
__device__ void load_q(const AttentionArgs& args, const Item& item, Shared& shared) {
  const int head_dim = args.kv.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < item.heads * kDims; i += kThreads) {
    const int h = i / kDims;
    const int d = i % kDims;
    const float* q = args.q + (static_cast<size_t>(item.row) * static_cast<size_t>(args.heads) +
                               static_cast<size_t>(item.first_head + h)) *
                                  static_cast<size_t>(head_dim);
    shared.q[h][d % kScoreLanes * (kDims / kScoreLanes) + d / kScoreLanes] =
        d < head_dim ? q[d] : 0.0f;
  }
}

// Softmax numerators of one chunk in shared.p and the maxima in shared.max; the tile's values in
// `staged`. The first chunk of an item loads the queries too. Ends with a barrier.
template <class Element, int kDims>
__device__ void score_chunk(const AttentionArgs& args, const Tile<Element>& tile, const Item& item,
                            bool first, float scale, Shared& shared, Element* staged) {
  const int head_dim = args.kv.head_dim;
  const int t = static_cast<int>(threadIdx.x);
  const int lane = t % kScoreLanes;
  const int group = t / kScoreLanes;
  KeyLane<Element, kDims> keys[kRounds];
#pragma unroll
  for (int n = 0; n < kRounds; ++n) {
    const int position = group + n * kPositions;
    if (position < tile.count) keys[n].load(tile.keys, position, lane, head_dim);
  }
  // The values arrive while the scores are computed.
  const int value_words = tile.count * head_dim * static_cast<int>(sizeof(Element)) / 4;
  constexpr int kWords = kAttentionChunk * kDims * static_cast<int>(sizeof(Element)) / 4 / kThreads;
  uint32_t values[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int word = t + i * kThreads;
    if (word < value_words) values[i] = reinterpret_cast<const uint32_t*>(tile.values)[word];
  }
  if (first) {
    load_q<kDims>(args, item, shared);
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < kRounds; ++n) {
    const int position = group + n * kPositions;
    for (int h = 0; h < item.heads; ++h) {
      const float* q = shared.q[h] + lane * (kDims / kScoreLanes);
      float sum =
          fold_products<1, kDims / kScoreLanes>([&](int m) { return q[m] * keys[n].k[m]; }, 0);
      for (int width = kScoreLanes / 2; width >= 1; width /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, width);
      }
      if (lane == 0) {
        shared.p[h][position] = position < tile.count ? (sum + 0.0f) * scale : -INFINITY;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int word = t + i * kThreads;
    if (word < value_words) reinterpret_cast<uint32_t*>(staged)[word] = values[i];
  }
  __syncthreads();
  const int h = t / 32;
  if (h < item.heads) {
    float* p = shared.p[h] + t % 32;
    const float low = p[0];
    const float high = p[32];
    const float max = max_warp(fmaxf(low, high));
    p[0] = canonical_exp(low - max);
    p[32] = canonical_exp(high - max);
    if (t % 32 == 0) shared.max[h] = max;
  }
  __syncthreads();
}

// Sum of p and of p * v for one head and two neighbouring dimensions, in ascending position.
struct ChunkSums {
  float sum = 0.0f;
  float o0 = 0.0f;
  float o1 = 0.0f;

  template <class Element>
  __device__ ChunkSums(const float* p, const Element* staged, int head_dim, int count, int d) {
    const Element* v = staged + d;
    int j = 0;
    for (; j + 16 <= count; j += 16) {
#pragma unroll
      for (int n = 0; n < 16; ++n) add(p[j + n], v + (j + n) * head_dim);
    }
    for (; j < count; ++j) add(p[j], v + j * head_dim);
  }

 private:
  __device__ void add(float weight, const uint16_t* v) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(v));
    add(weight, pair);
  }
  __device__ void add(float weight, const float* v) {
    add(weight, *reinterpret_cast<const float2*>(v));
  }
  __device__ void add(float weight, float2 v) {
    sum += weight;
    o0 = fmaf(weight, v.x, o0);
    o1 = fmaf(weight, v.y, o1);
  }
};

__device__ inline float* out_of(const AttentionArgs& args, int row, int head) {
  return args.out +
         (static_cast<size_t>(row) * static_cast<size_t>(args.heads) + static_cast<size_t>(head)) *
             static_cast<size_t>(args.kv.head_dim);
}

// A chunk's state in the workspace: max, sum, then o[head_dim].
__device__ inline float* state_of(const AttentionArgs& args, const States& states, int row,
                                  int head, int chunk) {
  return states.states +
         ((static_cast<size_t>(row) * static_cast<size_t>(args.heads) + static_cast<size_t>(head)) *
              static_cast<size_t>(states.max_chunks) +
          static_cast<size_t>(chunk)) *
             static_cast<size_t>(args.kv.head_dim + 2);
}

// Merges the states of all chunks of a row's heads first_head .. + heads - 1, in ascending order,
// with the whole block. M' is a prefix maximum, so the factors of 32 chunks are found at once; what
// stays in order is one fma a chunk.
__device__ void merge_chunks(const AttentionArgs& args, const States& states, const Item& item,
                             int chunks, Shared& shared) {
  constexpr int kPerThread = kMaxHeads * 256 / kThreads;
  const int t = static_cast<int>(threadIdx.x);
  const int head_dim = args.kv.head_dim;
  float o[kPerThread] = {};
  float sum[kPerThread] = {};
  float running = 0.0f;  // of the warp's head: the maximum so far
  for (int begin = 0; begin < chunks; begin += 32) {
    const int h = t / 32;
    const int c = begin + t % 32;
    if (h < item.heads) {
      const float max =
          c < chunks ? __ldcg(state_of(args, states, item.row, item.first_head + h, c)) : -INFINITY;
      // Inclusive prefix maximum over the lanes, then with what came before.
      float prefix = max;
      for (int width = 1; width < 32; width *= 2) {
        const float other = __shfl_up_sync(kAllLanes, prefix, static_cast<unsigned>(width));
        if (t % 32 >= width) prefix = fmaxf(prefix, other);
      }
      if (begin > 0) prefix = fmaxf(prefix, running);
      float before = __shfl_up_sync(kAllLanes, prefix, 1);
      if (t % 32 == 0) before = running;
      shared.a[h][t % 32] = canonical_exp(before - prefix);
      shared.b[h][t % 32] = canonical_exp(max - prefix);
      running = __shfl_sync(kAllLanes, prefix, 31);
    }
    __syncthreads();
    const int end = min(32, chunks - begin);
#pragma unroll
    for (int n = 0; n < kPerThread; ++n) {
      const int i = t + n * kThreads;
      if (i >= item.heads * head_dim) break;
      const int head = i / head_dim;
#pragma unroll 4
      for (int j = 0; j < end; ++j) {
        const float* state = state_of(args, states, item.row, item.first_head + head, begin + j);
        const float chunk_sum = __ldcg(state + 1);
        const float chunk_o = __ldcg(state + 2 + i % head_dim);
        if (begin + j == 0) {
          sum[n] = chunk_sum;
          o[n] = chunk_o;
        } else {
          sum[n] = fmaf(sum[n], shared.a[head][j], chunk_sum * shared.b[head][j]);
          o[n] = fmaf(o[n], shared.a[head][j], chunk_o * shared.b[head][j]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < kPerThread; ++n) {
    const int i = t + n * kThreads;
    if (i >= item.heads * head_dim) break;
    out_of(args, item.row, item.first_head + i / head_dim)[i % head_dim] = o[n] / sum[n];
  }
}

template <class Element, int kDims>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(AttentionArgs args, States states, int group, float scale) {
  extern __shared__ uint4 staged_memory[];
  Element* staged = reinterpret_cast<Element*>(staged_memory);
  __shared__ Shared shared;
  const int t = static_cast<int>(threadIdx.x);
  const int head_dim = args.kv.head_dim;
  const int row = static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.x);
  let_next_start();
  wait_for_previous();
  const int chunks = args.places.position[row] / kAttentionChunk + 1;
  const int workers = min(chunks, static_cast<int>(gridDim.y));
  if (static_cast<int>(blockIdx.y) >= workers) return;
  for (int first = 0; first < group; first += kMaxHeads) {
    const Item item{row, kv_head, kv_head * group + first, min(kMaxHeads, group - first)};
    for (int c = static_cast<int>(blockIdx.y); c < chunks; c += workers) {
      const Tile<Element> tile(args, row, kv_head, c);
      score_chunk<Element, kDims>(args, tile, item, c == static_cast<int>(blockIdx.y), scale,
                                  shared, staged);
      for (int i = 2 * t; i < item.heads * head_dim; i += 2 * kThreads) {
        const int h = i / head_dim;
        const int d = i % head_dim;
        const ChunkSums sums(shared.p[h], staged, head_dim, tile.count, d);
        if (chunks == 1) {
          float* out = out_of(args, row, item.first_head + h) + d;
          out[0] = sums.o0 / sums.sum;
          out[1] = sums.o1 / sums.sum;
          continue;
        }
        float* state = state_of(args, states, row, item.first_head + h, c);
        state[2 + d] = sums.o0;
        state[3 + d] = sums.o1;
        if (d == 0) {
          state[0] = shared.max[h];
          state[1] = sums.sum;
        }
      }
      __syncthreads();
    }
  }
  if (chunks == 1) return;

  // Every block has written its states before it counts itself done (fence, then the counter); the
  // block that counts last therefore sees all of them (counter, then fence).
  __threadfence();
  __syncthreads();
  if (t == 0) {
    int32_t* done = states.done + row * args.kv.kv_heads + kv_head;
    shared.last = atomicAdd(done, 1) == workers - 1;
    if (shared.last) *done = 0;
  }
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  for (int first = 0; first < group; first += kMaxHeads) {
    const Item item{row, kv_head, kv_head * group + first, min(kMaxHeads, group - first)};
    merge_chunks(args, states, item, chunks, shared);
  }
}

template <class Element, int kDims>
void launch_attention(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream) {
  const int group = args.heads / args.kv.kv_heads;
  const float scale = attention_scale(args.kv.head_dim);
  const size_t staged_bytes =
      static_cast<size_t>(kAttentionChunk * args.kv.head_dim) * sizeof(Element);
  // About two blocks for each SM of a large GPU; each takes every n-th chunk, so that the grid does
  // not depend on the position. Blocks without a chunk end at once.
  const int splits = max(1, min(workspace.max_chunks, 256 / (args.rows * args.kv.kv_heads)));
  launch(decode_kernel<Element, kDims>,
         dim3(static_cast<unsigned>(args.kv.kv_heads), static_cast<unsigned>(splits),
              static_cast<unsigned>(args.rows)),
         dim3(kThreads), staged_bytes, stream, args,
         States{workspace.attention, workspace.attention_done, workspace.max_chunks}, group, scale);
}

template <class Element>
void attention_of(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (args.kv.head_dim <= 64) {
    launch_attention<Element, 64>(args, workspace, stream);
  } else if (args.kv.head_dim <= 128) {
    launch_attention<Element, 128>(args, workspace, stream);
  } else {
    launch_attention<Element, 256>(args, workspace, stream);
  }
}

}  // namespace

void attention(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (args.rows > kMaxInlineRows) {
    attention_prefill(args, stream);
  } else if (args.kv.type == KvType::kF16) {
    attention_of<uint16_t>(args, workspace, stream);
  } else {
    attention_of<float>(args, workspace, stream);
  }
}

}  // namespace edgellm::cuda
