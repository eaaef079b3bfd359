// FlashDecoding with a fixed order (kernels/ops.h): chunks of 64 positions in parallel, merged in
// ascending order. A few rows, each with a long past: decode. Many: attention_prefill.cu.
//
// A block takes a run of chunks for one query head of one row, a few chunks at a time. Keys and
// values that earlier steps have left in the cache are fetched before the previous kernel has
// ended. Short contexts are one block's work from end to end; for long ones each block leaves the
// states of its chunks in the workspace, and the block that finishes last merges them.
#include <cuda_fp16.h>

#include "kernels/cuda/attention_prefill.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"

namespace edgellm::cuda {
namespace {

// Lanes that share a score: lane t sums dimensions t, t + 8, ..., the last three fold steps cross
// lanes.
constexpr int kScoreLanes = kKeyLanes;
// Positions that a block scores at once.
constexpr int kPositions = kThreads / kScoreLanes;
// Up to this many passes over its chunks a block works alone.
constexpr int kPassesAlone = 2;

// What the kernels need of the workspace.
struct States {
  float* states;  // [row, head, max_chunks, head_dim + 2]: max, sum, o
  int32_t* done;  // [row, head]
  int max_chunks;
};

template <int kDims, int kCount>
struct Shared {
  float p[kCount * kAttentionChunk];
  float o[kCount][kDims];  // of chunks that the block merges itself
  float aside[kDims];      // what a rehearsal would put out
  float max[kCount];
  float a[kCount];  // factors of the merge
  float b[kCount];
  float sum;  // of all chunks so far
  size_t tile[kCount];
  bool last;
};

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

// How the keys of a position lie in shared memory, and what a lane of the eight that share a score
// takes of them. kExact: the head has exactly kDims dimensions; each lane's are contiguous in the
// cache (key_index()), and 16 bytes of all lanes lie side by side here.
template <class Element, int kDims, bool kExact>
struct KeyRow {
  static constexpr int kLane = kDims / kScoreLanes;             // dimensions of a lane
  static constexpr int kLoads = kLane * sizeof(Element) / 16;  // its 16-byte words

  // Where word `from` of a position's keys goes.
  __device__ static int place(int from) {
    return kExact ? from % kLoads * kScoreLanes + from / kLoads : from;
  }

  // Dot product of the lane's dimensions with those of a query, its part of the tree.
  __device__ static float dot(const Element* keys, int lane, int head_dim,
                              const float (&q)[kLane]) {
    float k[kLane];
    if constexpr (kExact) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const uint4 word = reinterpret_cast<const uint4*>(keys)[i * kScoreLanes + lane];
        const Element* elements = reinterpret_cast<const Element*>(&word);
        constexpr int kPerLoad = 16 / sizeof(Element);
#pragma unroll
        for (int j = 0; j < kPerLoad; ++j) k[i * kPerLoad + j] = widen_element(elements[j]);
      }
    } else {
#pragma unroll
      for (int m = 0; m < kLane; ++m) {
        const int d = lane + kScoreLanes * m;
        k[m] = d < head_dim ? widen_element(keys[key_index(0, d, head_dim)]) : 0.0f;
      }
    }
    return fold_products<1, kLane>([&](int m) { return q[m] * k[m]; }, 0);
  }
};

// Sum of p * v for two neighbouring dimensions of a chunk's values [position, head_dim], in
// ascending position. `count` is a multiple of 4: p and v may be followed by zeros, which change
// nothing (no sum here can be -0).
template <class Element>
__device__ inline float2 weighted_values(const float* p, const Element* values, int head_dim,
                                         int count) {
  float2 o = {0.0f, 0.0f};
#pragma unroll 2
  for (int j = 0; j < count; j += 4) {
    const float4 weights = *reinterpret_cast<const float4*>(p + j);
    const float w[4] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float2 v;
      if constexpr (sizeof(Element) == 2) {
        v = __half22float2(*reinterpret_cast<const __half2*>(values + (j + n) * head_dim));
      } else {
        v = *reinterpret_cast<const float2*>(values + (j + n) * head_dim);
      }
      o.x = fmaf(w[n], v.x, o.x);
      o.y = fmaf(w[n], v.y, o.y);
    }
  }
  return o;
}

__device__ inline float sum_of_weights(const float* p, int count) {
  float sum = 0.0f;
#pragma unroll 2
  for (int j = 0; j < count; j += 4) {
    const float4 weights = *reinterpret_cast<const float4*>(p + j);
    sum += weights.x;
    sum += weights.y;
    sum += weights.z;
    sum += weights.w;
  }
  return sum;
}

// Factors of the merge of up to 32 chunks, lane c for chunk c; absent ones have max = -infinity.
// `running` is the maximum of the chunks before and becomes that of all.
struct MergeFactors {
  float a, b;

  __device__ MergeFactors(float max, float& running) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // M' is a prefix maximum, so that the factors of all chunks are found at once.
    float prefix = fmaxf(max, running);
    for (int width = 1; width < 32; width *= 2) {
      const float other = __shfl_up_sync(kAllLanes, prefix, width);
      if (lane >= width) prefix = fmaxf(prefix, other);
    }
    float before = __shfl_up_sync(kAllLanes, prefix, 1);
    if (lane == 0) before = running;
    a = canonical_exp(before - prefix);
    b = canonical_exp(max - prefix);
    running = __shfl_sync(kAllLanes, prefix, 31);
  }
};

// The first chunk of a row meets an empty state: sum and o are 0, a = 0 and b = 1, which leaves
// its own state, exactly.
constexpr float kEmpty = -INFINITY;

__device__ inline float* state_of(const AttentionArgs& args, const States& states, int row,
                                  int head, int chunk) {
  return states.states +
         ((static_cast<size_t>(row) * static_cast<size_t>(args.heads) + static_cast<size_t>(head)) *
              static_cast<size_t>(states.max_chunks) +
          static_cast<size_t>(chunk)) *
             static_cast<size_t>(args.kv.head_dim + 2);
}

// Merges the states of a row's chunks for one head, a thread for each dimension.
__device__ void merge_states(const AttentionArgs& args, const States& states, int row, int head,
                             int chunks, float* out) {
  constexpr int kBatch = 8;
  const int d = static_cast<int>(threadIdx.x);
  const int lane = d % 32;
  const int head_dim = args.kv.head_dim;
  // Whole warps stay together: lanes exchange the factors.
  if (d / 32 * 32 >= head_dim) return;
  const int own_d = min(d, head_dim - 1);
  const size_t stride = static_cast<size_t>(head_dim + 2);
  float running = kEmpty;
  float sum = 0.0f;
  float o = 0.0f;
  for (int begin = 0; begin < chunks; begin += 32) {
    const float* state = state_of(args, states, row, head, begin);
    const int count = min(32, chunks - begin);
    float max = -INFINITY;
    float chunk_sum = 0.0f;
    if (lane < count) {
      max = __ldcg(state + static_cast<size_t>(lane) * stride);
      chunk_sum = __ldcg(state + static_cast<size_t>(lane) * stride + 1);
    }
    const MergeFactors factors(max, running);
    const float scaled_sum = chunk_sum * factors.b;
    for (int c = 0; c < count; c += kBatch) {
      float chunk_o[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        chunk_o[i] = c + i < count
                         ? __ldcg(state + static_cast<size_t>(c + i) * stride + 2 + own_d)
                         : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int from = (c + i) % 32;
        const float a = __shfl_sync(kAllLanes, factors.a, from);
        const float b = __shfl_sync(kAllLanes, factors.b, from);
        const float s = __shfl_sync(kAllLanes, scaled_sum, from);
        if (c + i < count) {
          sum = fmaf(sum, a, s);
          o = fmaf(o, a, chunk_o[i] * b);
        }
      }
    }
  }
  if (d < head_dim) out[d] = o / sum;
}

// As those of linear.cu, a block rehearses its work before the previous kernel has ended.
template <class Element, int kDims, bool kExact, int kCount>
__global__ void __launch_bounds__(kThreads + 32, kDims <= 128 ? 3 : 1)
    decode_kernel(AttentionArgs args, States states, int group, float scale) {
  using Keys = KeyRow<Element, kDims, kExact>;
  constexpr int kPerChunk = kThreads / kCount;  // threads that sum a chunk's values
  extern __shared__ uint4 memory[];             // keys, then values: [kCount, 64, head_dim] each
  __shared__ Shared<kDims, kCount> shared;
  const int t = static_cast<int>(threadIdx.x);
  const bool service = t >= kThreads;
  const int head_dim = kExact ? kDims : args.kv.head_dim;
  const int head = static_cast<int>(blockIdx.x);
  const int worker = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  let_next_start();

  // Places are inputs of the step, written before its first kernel starts.
  const int sequence = args.places.sequence[row];
  const int position = args.places.position[row];
  const int chunks = position / kAttentionChunk + 1;
  const int workers =
      chunks <= kPassesAlone * kCount ? 1 : min(static_cast<int>(gridDim.y), chunks);
  if (worker >= workers) return;
  // This block's chunks.
  const int begin_chunk = chunks * worker / workers;
  const int end_chunk = chunks * (worker + 1) / workers;
  // Keys and values from `fresh` on are written by this pass, those before by earlier ones.
  int fresh = position;
#pragma unroll 1
  for (int r = 0; r < args.rows; ++r) {
    if (args.places.sequence[r] == sequence) fresh = min(fresh, args.places.position[r]);
  }

  const int lane = t % kScoreLanes;
  const int own_chunk = t / kPerChunk;  // whose values the thread sums, among those of a pass
  const int own_d = t % kPerChunk * 2;
  const int row_bytes = head_dim * static_cast<int>(sizeof(Element));
  const int tile_words = kAttentionChunk * row_bytes / 16;
  const Element* keys = reinterpret_cast<const Element*>(memory);
  Element* values = reinterpret_cast<Element*>(memory + kCount * tile_words);
  const size_t row_of_heads = (static_cast<size_t>(row) * static_cast<size_t>(args.heads) +
                               static_cast<size_t>(head)) *
                              static_cast<size_t>(head_dim);
  float q[Keys::kLane] = {};
  float running = kEmpty;  // the service warp's
  float sum = 0.0f;
  float merged = 0.0f;  // of dimension t
  int copied = 0;       // positions of the pass whose keys and values are fetched
  int tiles_from = -1;  // the pass whose shared.tile is filled
  bool rehearsal = true;

#pragma unroll 1
  for (int first = begin_chunk; first < end_chunk;) {
    const int n_chunks = min(kCount, end_chunk - first);
    const int first_position = first * kAttentionChunk;
    const int in_use = min(n_chunks * kAttentionChunk, position + 1 - first_position);
    if (tiles_from != first) {
      tiles_from = first;
      if (t < n_chunks) {
        shared.tile[t] = args.kv.tile_offset(sequence, first_position + t * kAttentionChunk,
                                             head / group);
      }
      __syncthreads();
    }
    // By whole 16-byte words.
    const int available = rehearsal ? min(in_use, max(0, fresh - first_position)) : in_use;
    if (!service) {
#pragma unroll 1
      for (int c = copied / kAttentionChunk; c * kAttentionChunk < available; ++c) {
        const size_t tile = shared.tile[c];
        const auto words_of = [&](const void* pool) {
          return reinterpret_cast<const uint4*>(static_cast<const Element*>(pool) + tile);
        };
        const int end = min(kAttentionChunk, available - c * kAttentionChunk) * row_bytes;
        int word = max(0, copied - c * kAttentionChunk) * row_bytes / 16 + t;
#pragma unroll 1
        for (; 16 * word < end; word += kThreads) {
          int to = word;
          if constexpr (kExact) {
            constexpr int kRow = kScoreLanes * Keys::kLoads;
            to = word / kRow * kRow + Keys::place(word % kRow);
          }
          copy_async(memory + c * tile_words + to, words_of(args.kv.k) + word);
          copy_async(memory + (kCount + c) * tile_words + word, words_of(args.kv.v) + word);
        }
      }
    }
    copied = available;
    const int count = rehearsal ? min(in_use, 5) : in_use;
    wait_for_copies();
    __syncthreads();
    if (!service) {
#pragma unroll 1
      for (int begin = 0; begin < count; begin += kPositions) {
        const int p = begin + t / kScoreLanes;
        float score = Keys::dot(keys + p * head_dim, lane, head_dim, q);
        for (int width = kScoreLanes / 2; width >= 1; width /= 2) {
          score += __shfl_xor_sync(kAllLanes, score, width);
        }
        if (lane == 0) shared.p[p] = (score + 0.0f) * scale;
      }
      // Values are summed by fours.
      for (int i = t; i < (-in_use & 3) * head_dim; i += kThreads) values[in_use * head_dim + i] = 0;
    }
    __syncthreads();
    if (t / 32 * kAttentionChunk < count) {
      const int p = t / 32 * kAttentionChunk + t % 32;
      const float low = p < count ? shared.p[p] : -INFINITY;
      const float high = p + 32 < count ? shared.p[p + 32] : -INFINITY;
      const float max = max_warp(fmaxf(low, high));
      shared.p[p] = canonical_exp(low - max);
      shared.p[p + 32] = canonical_exp(high - max);
      if (t % 32 == 0) shared.max[t / 32] = max;
    }
    __syncthreads();

    const bool alone = workers == 1 || rehearsal;
    const int c = service ? t - kThreads : own_chunk;
    const int own_count = (min(kAttentionChunk, count - c * kAttentionChunk) + 3) & ~3;
    float* const state = state_of(args, states, row, head, first + c);
    if (service) {
      float max = -INFINITY;
      float chunk_sum = 0.0f;
      if (own_count > 0) {
        max = shared.max[c];
        chunk_sum = sum_of_weights(shared.p + c * kAttentionChunk, own_count);
      }
      if (alone) {
        const MergeFactors factors(max, running);
        if (c < kCount) {
          shared.a[c] = factors.a;
          shared.b[c] = factors.b;
        }
#pragma unroll 1
        for (int i = 0; i < n_chunks; ++i) {
          sum = fmaf(sum, __shfl_sync(kAllLanes, factors.a, i),
                     __shfl_sync(kAllLanes, chunk_sum * factors.b, i));
        }
        if (c == 0) shared.sum = sum;
      } else if (own_count > 0) {
        state[0] = max;
        state[1] = chunk_sum;
      }
    } else if (own_count > 0 && own_d < head_dim) {
      const float2 o =
          weighted_values(shared.p + own_chunk * kAttentionChunk,
                          values + own_chunk * kAttentionChunk * head_dim + own_d, head_dim,
                          own_count);
      float* to = alone ? shared.o[own_chunk] + own_d : state + 2 + own_d;
      to[0] = o.x;
      to[1] = o.y;
    }
    __syncthreads();
    if (alone && t < head_dim) {
#pragma unroll 1
      for (int i = 0; i < n_chunks; ++i) {
        merged = fmaf(merged, shared.a[i], shared.o[i][t] * shared.b[i]);
      }
      float* to = rehearsal ? shared.aside + t : args.out + row_of_heads + t;
      if (first + kCount >= end_chunk) *to = merged / shared.sum;
    }
    if (rehearsal) {
      // The same chunks again. What this pass has written is fetched in a second round of copies.
      rehearsal = false;
      running = kEmpty;
      sum = 0.0f;
      merged = 0.0f;
      wait_for_previous();
      if (!service) {
#pragma unroll
        for (int m = 0; m < Keys::kLane; ++m) {
          const int d = lane + kScoreLanes * m;
          if (kExact || d < head_dim) q[m] = args.q[row_of_heads + static_cast<size_t>(d)];
        }
      }
      continue;
    }
    // The next pass overwrites keys and values at once, the rest after its own barriers.
    first += kCount;
    copied = 0;
  }
  if (workers == 1) return;

  // Every block has written its states before it counts itself done (fence, then the counter); the
  // block that counts last therefore sees all of them (counter, then fence).
  __threadfence();
  __syncthreads();
  if (t == 0) {
    int32_t* done = states.done + row * args.heads + head;
    shared.last = atomicAdd(done, 1) == workers - 1;
    if (shared.last) *done = 0;
  }
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  merge_states(args, states, row, head, chunks, args.out + row_of_heads);
}

// Blocks that share a row's chunks for a head. All have room at once, one on each SM, and the grid
// does not depend on the position: blocks without a chunk end at once.
int workers_for(const AttentionArgs& args, int max_chunks, int per_pass) {
  if (max_chunks <= kPassesAlone * per_pass) return 1;
  return std::max(1, std::min(max_chunks, multiprocessors() / (args.rows * args.heads)));
}

template <class Element, int kDims, bool kExact, int kCount>
void launch_count(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream) {
  const size_t shared_bytes =
      2 * static_cast<size_t>(kCount * kAttentionChunk * args.kv.head_dim) * sizeof(Element);
  // Less at a time where shared memory is small (compute capability 7.5: 64 KiB).
  if constexpr (kCount > 1) {
    if (shared_bytes > max_dynamic_shared()) {
      launch_count<Element, kDims, kExact, kCount / 2>(args, workspace, stream);
      return;
    }
  }
  launch(decode_kernel<Element, kDims, kExact, kCount>,
         dim3(static_cast<unsigned>(args.heads),
              static_cast<unsigned>(workers_for(args, workspace.max_chunks, kCount)),
              static_cast<unsigned>(args.rows)),
         dim3(kThreads + 32), shared_bytes, stream, args,
         States{workspace.attention, workspace.attention_done, workspace.max_chunks},
         args.heads / args.kv.kv_heads, attention_scale(args.kv.head_dim));
}

template <class Element, int kDims>
void launch_attention(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream) {
  // Chunks that a block works on at a time: a thread sums two dimensions of one.
  constexpr int kCount = 2 * kThreads / kDims * 2 / static_cast<int>(sizeof(Element));
  if (args.kv.head_dim == kDims) {
    launch_count<Element, kDims, true, kCount>(args, workspace, stream);
  } else {
    launch_count<Element, kDims, false, kCount>(args, workspace, stream);
  }
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
  if (args.rows > workspace.attention_rows) {
    attention_rows(args, stream);
  } else if (args.kv.type == KvType::kF16) {
    attention_of<uint16_t>(args, workspace, stream);
  } else {
    attention_of<float>(args, workspace, stream);
  }
}

}  // namespace edgellm::cuda
