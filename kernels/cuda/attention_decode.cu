// Attention of a few rows, each with a long past (decode): FlashDecoding with a fixed order
// (kernels/ops.h). Chunks of 64 positions are made in parallel and merged in ascending order. Many
// rows are the work of attention_batch.cu and attention_prefill.cu.
//
// A short context is one block's work for each query head, from end to end. A long one is cut into
// runs of chunks. A block takes a run for all query heads of a kv head, which share its keys and
// values, and leaves the states of its chunks in the workspace; the block that ends last merges
// them. The position alone decides between the two; the grid is the same.
//
// Before the previous kernel has ended, a block fetches the keys and values that earlier steps have
// left in the cache. Then it warms up, as those of gemv.cu do.
#include <cuda_fp16.h>

#include "kernels/cuda/attention_chunk.cuh"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"

namespace edgellm::cuda {
namespace {

// Lanes that share a score: lane t sums dimensions t, t + 8, ...; the last three fold steps cross
// lanes.
constexpr int kScoreLanes = kKeyLanes;
static_assert(kDecodeThreads == kThreads + 32);
// Positions that a block scores at once.
constexpr int kPositions = kThreads / kScoreLanes;

// What the kernels need of the workspace.
struct States {
  float* states;  // [row, head, max_chunks, size]: o[head_dim], max, sum
  int32_t* done;  // [row, kv head]
  int max_chunks;
  int size;

  __device__ float* of(const AttentionArgs& args, int row, int head, int chunk) const {
    return states + ((static_cast<size_t>(row) * static_cast<size_t>(args.heads) +
                      static_cast<size_t>(head)) *
                         static_cast<size_t>(max_chunks) +
                     static_cast<size_t>(chunk)) *
                        static_cast<size_t>(size);
  }
};

// kCount: slots, each a chunk of one head.
template <int kDims, int kCount>
struct DecodeShared {
  float4 q[kCount][kDims / 4];  // of head h: [dimensions of a lane / 4][lane]
  float p[kCount][kAttentionChunk];
  float o[kCount][kDims];  // of chunks that the block merges itself
  float discarded[kDims];  // what a warm-up would put out
  float max[kCount];
  float a[kCount];  // factors of the merge
  float b[kCount];
  float sum;  // of all chunks
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

// How the keys of a position lie in shared memory, and what a lane of the eight that share a score
// takes of them. kExact: the head has exactly kDims dimensions; each lane's are contiguous in the
// cache (key_index()), and 16 bytes of all lanes lie side by side here.
template <class Element, int kDims, bool kExact>
struct KeyRow {
  static constexpr int kLane = kDims / kScoreLanes;            // dimensions of a lane
  static constexpr int kLoads = kLane * sizeof(Element) / 16;  // 16-byte words

  // Where 16-byte word `from` of a tile goes.
  __device__ static int staged_word(int from) {
    constexpr int kRow = kLoads * kScoreLanes;
    return kExact ? from / kRow * kRow + from % kLoads * kScoreLanes + from % kRow / kLoads : from;
  }

  // The lane's dimensions of a query (DecodeShared::q).
  __device__ static void load_query(const float4* query, int lane, float (&q)[kLane]) {
#pragma unroll
    for (int i = 0; i < kLane / 4; ++i) {
      const float4 word = query[i * kScoreLanes + lane];
      q[4 * i] = word.x;
      q[4 * i + 1] = word.y;
      q[4 * i + 2] = word.z;
      q[4 * i + 3] = word.w;
    }
  }

  // Their dot product with those of a key, its part of the tree.
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
        for (int j = 0; j < kPerLoad; ++j) k[i * kPerLoad + j] = widened(elements[j]);
      }
    } else {
#pragma unroll
      for (int m = 0; m < kLane; ++m) {
        const int d = lane + kScoreLanes * m;
        k[m] = d < head_dim ? widened(keys[key_index(0, d, head_dim)]) : 0.0f;
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
    sum = add_in_order(sum, *reinterpret_cast<const float4*>(p + j));
  }
  return sum;
}

// Factors of the merge of up to 32 chunks, lane c for chunk c; absent ones have max = -infinity.
// `running` is the maximum of the chunks before and becomes that of all.
__device__ __forceinline__ MergeFactors prefix_factors(float max, float& running) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // M' is a prefix maximum, so that the factors of all chunks are found at once.
  float prefix = fmaxf(max, running);
  for (int width = 1; width < 32; width *= 2) {
    const float other = __shfl_up_sync(kAllLanes, prefix, width);
    if (lane >= width) prefix = fmaxf(prefix, other);
  }
  float before = __shfl_up_sync(kAllLanes, prefix, 1);
  if (lane == 0) before = running;
  const MergeFactors factors(before, max);
  running = __shfl_sync(kAllLanes, prefix, 31);
  return factors;
}

// The first chunk of a row meets an empty state: sum and o are 0, a = 0 and b = 1, which leaves
// its own state, exactly.
constexpr float kEmpty = -INFINITY;

// Merges the states of all chunks of a row's heads first_head .. first_head + group - 1, with the
// whole block and `memory` of `bytes` bytes.
template <int kDims>
__device__ void merge_states(const AttentionArgs& args, const States& states, int row,
                             int first_head, int group, int chunks, uint4* memory, int bytes) {
  constexpr int kPairs = kDims / 2;                 // threads of a head: two dimensions each
  constexpr int kHeads = (kThreads + 32) / kPairs;  // at a time
  const int t = static_cast<int>(threadIdx.x);
  const int head_dim = args.kv.head_dim;
  const int words = states.size / 4;
  // States [head, chunk] of as many chunks as there is room for, then their factors {a, b, sum b}.
  const int tile = min(chunks, bytes / 16 / (kHeads * (words + 1)));
  float4* const factors = reinterpret_cast<float4*>(memory + kHeads * tile * words);
#pragma unroll 1
  for (int begin = 0; begin < group; begin += kHeads) {
    const int heads = min(kHeads, group - begin);
    const int h = t / kPairs;
    const int d = t % kPairs * 2;
    const bool merges = h < heads && d < head_dim;
    float running = kEmpty;  // maximum of the head of the thread's warp
    float sum = 0.0f;
    float2 o = {0.0f, 0.0f};
#pragma unroll 1
    for (int first = 0; first < chunks; first += tile) {
      const int count = min(tile, chunks - first);
#pragma unroll 1
      for (int i = 0; i < heads; ++i) {
        const uint4* from =
            reinterpret_cast<const uint4*>(states.of(args, row, first_head + begin + i, first));
        for (int w = t; w < count * words; w += kThreads + 32) {
          copy_async(memory + i * tile * words + w, from + w);
        }
      }
      wait_for_copies();
      __syncthreads();
      if (t / 32 < heads) {
        const float* head_states = reinterpret_cast<const float*>(memory + t / 32 * tile * words);
#pragma unroll 1
        for (int c = t % 32; c - t % 32 < count; c += 32) {
          const float* state = head_states + min(c, count - 1) * states.size + head_dim;
          const MergeFactors merge = prefix_factors(c < count ? state[0] : -INFINITY, running);
          if (c < count) {
            factors[t / 32 * tile + c] = {merge.a, merge.b, state[1] * merge.b, 0.0f};
          }
        }
      }
      __syncthreads();
      if (merges) {
        const float* own = reinterpret_cast<const float*>(memory + h * tile * words) + d;
#pragma unroll 4
        for (int c = 0; c < count; ++c) {
          const float4 factor = factors[h * tile + c];
          const float2 v = *reinterpret_cast<const float2*>(own + c * states.size);
          sum = fmaf(sum, factor.x, factor.z);
          o.x = merged(o.x, factor.x, v.x, factor.y);
          o.y = merged(o.y, factor.x, v.y, factor.y);
        }
      }
      __syncthreads();
    }
    if (merges) {
      float* out = args.out + (static_cast<size_t>(row) * static_cast<size_t>(args.heads) +
                               static_cast<size_t>(first_head + begin + h)) *
                                  static_cast<size_t>(head_dim);
      out[d] = o.x / sum;
      out[d + 1] = o.y / sum;
    }
  }
}

// The work of a block: number `block` of the `blocks` of row `row`.
struct DecodeItem {
  int row, block, blocks;
};

// What of a row's context and heads an item takes, by the row's position. A short context is
// `alone`: one item makes it from end to end for one head. Of a long one `workers` items of a kv
// head take a run of chunks each for all heads of its group.
struct DecodeShare {
  int sequence, position, chunks;
  bool alone;
  int workers, worker;
  int kv_head, first_head, n_heads;
  int begin_chunk, end_chunk;

  __device__ __forceinline__ DecodeShare(const AttentionArgs& args, const DecodeItem& item,
                                         int group, int slots)
      // Places are inputs of the step, written before its first kernel starts.
      : sequence(args.places.sequence[item.row]), position(args.places.position[item.row]) {
    chunks = position / kAttentionChunk + 1;
    alone = chunks <= slots;
    workers = alone ? 1 : min(item.blocks / args.kv.kv_heads, chunks);
    kv_head = alone ? item.block / group : item.block % args.kv.kv_heads;
    worker = alone ? 0 : item.block / args.kv.kv_heads;
    first_head = alone ? item.block : kv_head * group;
    n_heads = alone ? 1 : group;
    begin_chunk = chunks * worker / workers;
    end_chunk = chunks * (worker + 1) / workers;
  }
  __device__ __forceinline__ bool is_empty(const AttentionArgs& args) const {
    return first_head >= args.heads || worker >= workers;
  }
};

// A pass over slots, each a chunk of one head: `heads` heads, and of each up to 1 << chunk_bits
// chunks; slot = head << chunk_bits | chunk.
struct SlotPass {
  int heads, chunk_bits;
  int count;  // positions of each head

  __device__ __forceinline__ int chunk_of(int slot) const { return slot & ((1 << chunk_bits) - 1); }
  __device__ __forceinline__ int head_of(int slot) const { return slot >> chunk_bits; }

  // Positions of a slot; not positive where it has none.
  __device__ __forceinline__ int count_of(int slot) const {
    return head_of(slot) < heads ? min(kAttentionChunk, count - chunk_of(slot) * kAttentionChunk)
                                 : 0;
  }
};

// Where an item stands: at the chunks from c0 on of up to kCount whose keys and values are in
// shared memory, from chunk `first` on, for the heads from h0 on.
struct Cursor {
  int first;
  int tiles_from = -1;  // the first chunk that shared.tile is filled for
  int copied = 0;       // positions whose keys and values are fetched
  int c0 = 0;
  int h0 = 0;

  // To the next pass: `chunks` of n_chunks, `heads` of n_heads, `slots` chunks in shared memory.
  __device__ __forceinline__ void advance(int chunks, int n_chunks, int heads, int n_heads,
                                          int slots) {
    c0 += chunks;
    if (c0 < n_chunks) return;
    c0 = 0;
    h0 += heads;
    if (h0 < n_heads) return;
    h0 = 0;
    first += slots;
    copied = 0;
  }
};

// Copies the keys and values of positions copied .. available - 1 of the chunks whose tiles are in
// `tiles`, by whole 16-byte words: keys to `memory`, values kCount chunks behind them.
template <class Element, class Key, int kCount>
__device__ __forceinline__ void copy_positions(const KvCache& kv, const size_t* tiles, int copied,
                                               int available, int row_bytes, uint4* memory) {
  const int tile_words = kAttentionChunk * row_bytes / 16;
#pragma unroll 1
  for (int c = copied / kAttentionChunk; c * kAttentionChunk < available; ++c) {
    const size_t tile = tiles[c];
    const auto words_of = [&](const void* pool) {
      return reinterpret_cast<const uint4*>(static_cast<const Element*>(pool) + tile);
    };
    const int end = min(kAttentionChunk, available - c * kAttentionChunk) * row_bytes;
    int word =
        max(0, copied - c * kAttentionChunk) * row_bytes / 16 + static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (; 16 * word < end; word += kThreads) {
      copy_async(memory + c * tile_words + Key::staged_word(word), words_of(kv.k) + word);
      copy_async(memory + (kCount + c) * tile_words + word, words_of(kv.v) + word);
    }
  }
}

// The pass's queries, by the whole block; `q`: of its first head.
template <int kDims, int kCount>
__device__ __forceinline__ void load_pass_queries(const float* q, int heads, int head_dim,
                                                  DecodeShared<kDims, kCount>& shared) {
  for (int i = static_cast<int>(threadIdx.x); i < heads * kDims; i += kThreads + 32) {
    const int d = i % kDims;
    float* to = reinterpret_cast<float*>(shared.q[i / kDims]);
    to[d / kScoreLanes / 4 * kScoreLanes * 4 + d % kScoreLanes * 4 + d / kScoreLanes % 4] =
        d < head_dim ? q[i / kDims * head_dim + d] : 0.0f;
  }
}

// Scores of a pass from the keys of its first position on, by all threads but the service warp.
template <class Element, class Key, int kDims, int kCount>
__device__ __forceinline__ void score_pass(const SlotPass& pass, const Element* keys, int head_dim,
                                           float scale, DecodeShared<kDims, kCount>& shared) {
  const int t = static_cast<int>(threadIdx.x);
  const int lane = t % kScoreLanes;
#pragma unroll 1
  for (int h = 0; h < pass.heads; ++h) {
    float q[Key::kLane];
    Key::load_query(shared.q[h], lane, q);
#pragma unroll 2
    for (int p = t / kScoreLanes; p - t / kScoreLanes < pass.count; p += kPositions) {
      float score = Key::dot(keys + p * head_dim, lane, head_dim, q);
      for (int width = kScoreLanes / 2; width >= 1; width /= 2) {
        score += __shfl_xor_sync(kAllLanes, score, width);
      }
      if (lane == 0) {
        shared.p[(h << pass.chunk_bits) + p / kAttentionChunk][p % kAttentionChunk] =
            (score + 0.0f) * scale;
      }
    }
  }
}

// Softmax weights of a slot with `count` positions, by a warp.
template <int kDims, int kCount>
__device__ __forceinline__ void weigh_slot(int slot, int count,
                                           DecodeShared<kDims, kCount>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* p = shared.p[slot];
  const float low = lane < count ? p[lane] : -INFINITY;
  const float high = lane + 32 < count ? p[lane + 32] : -INFINITY;
  const float max = max_warp(fmaxf(low, high));
  p[lane] = canonical_exp(low - max);
  p[lane + 32] = canonical_exp(high - max);
  if (lane == 0) shared.max[slot] = max;
}

// The service warp's part of a pass, lane i for slot i: the maximum and the sum of the weights of
// the slot's `count` positions (a multiple of 4), into its state, or, where the block merges its
// chunks itself, into the merge's factors.
template <int kDims, int kCount>
__device__ __forceinline__ void serve_pass(int slot, int count, bool merges, int chunks,
                                           float* state, int head_dim,
                                           DecodeShared<kDims, kCount>& shared) {
  float max = -INFINITY;
  float chunk_sum = 0.0f;
  if (count > 0) {
    max = shared.max[slot];
    chunk_sum = sum_of_weights(shared.p[slot], count);
  }
  if (merges) {
    float running = kEmpty;
    const MergeFactors factors = prefix_factors(max, running);
    if (slot < kCount) {
      shared.a[slot] = factors.a;
      shared.b[slot] = factors.b;
    }
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      sum = fmaf(sum, __shfl_sync(kAllLanes, factors.a, i),
                 __shfl_sync(kAllLanes, chunk_sum * factors.b, i));
    }
    if (slot == 0) shared.sum = sum;
  } else if (count > 0) {
    state[head_dim] = max;
    state[head_dim + 1] = chunk_sum;
  }
}

// Dimension d of the result of `chunks` chunks that the block merges itself.
template <int kDims, int kCount>
__device__ __forceinline__ float merge_own(int chunks, int d,
                                           const DecodeShared<kDims, kCount>& shared) {
  float o = 0.0f;
#pragma unroll 1
  for (int i = 0; i < chunks; ++i) o = merged(o, shared.a[i], shared.o[i][d], shared.b[i]);
  return o / shared.sum;
}

// Counts the block as done. Every block has written its states before that (fence, then the
// counter); the block that counts last, which alone gets true, therefore sees all of them (counter,
// then fence).
template <int kDims, int kCount>
__device__ __forceinline__ bool count_last(int32_t* done, int workers,
                                           DecodeShared<kDims, kCount>& shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.last = atomicAdd(done, 1) == workers - 1;
    if (shared.last) *done = 0;
  }
  __syncthreads();
  if (!shared.last) return false;
  __threadfence();
  return true;
}

// An item of a row. `memory`: keys, then values, [kCount, 64, head_dim] each.
template <class Element, int kDims, bool kExact, int kCount>
__device__ __forceinline__ void decode_item(const AttentionArgs& args, const States& states,
                                            int group, float scale, const DecodeItem& item,
                                            uint4* memory) {
  using Key = KeyRow<Element, kDims, kExact>;
  constexpr int kPerSlot = kThreads / kCount;  // threads that sum a slot's values
  __shared__ DecodeShared<kDims, kCount> shared;
  const int t = static_cast<int>(threadIdx.x);
  const bool service = t >= kThreads;
  const int head_dim = kExact ? kDims : args.kv.head_dim;
  const DecodeShare share(args, item, group, kCount);
  if (share.is_empty(args)) return;
  // Blocks of the next kernel that come while SMs are still leaving the kernel before this one
  // crowd on those that are free, two on one, and leave no registers there for the kernel after
  // them. So they come later, unless this kernel needs all SMs itself.
  if (!share.alone) let_next_start();
  // Keys and values from `fresh` on are written by this pass, those before by earlier ones.
  int fresh = share.position;
#pragma unroll 1
  for (int r = 0; r < args.rows; ++r) {
    if (args.places.sequence[r] == share.sequence) fresh = min(fresh, args.places.position[r]);
  }

  const int own_slot = t / kPerSlot;  // whose values the thread sums
  const int own_d = t % kPerSlot * 2;
  const int row_bytes = head_dim * static_cast<int>(sizeof(Element));
  const int tile_words = kAttentionChunk * row_bytes / 16;
  const Element* keys = reinterpret_cast<const Element*>(memory);
  Element* values = reinterpret_cast<Element*>(memory + kCount * tile_words);
  const size_t first_value = (static_cast<size_t>(item.row) * static_cast<size_t>(args.heads) +
                              static_cast<size_t>(share.first_head)) *
                             static_cast<size_t>(head_dim);
  // A pass has kCount slots: heads_at_once heads, and of each a power of two of chunks (kCount is
  // one).
  const int heads_at_once = min(share.n_heads, kCount);
  SlotPass pass;
  pass.chunk_bits = 31 - __clz(kCount / heads_at_once);
  const int chunks_at_once = 1 << pass.chunk_bits;

  bool warm_up = kStartsEarly;
  Cursor at{share.begin_chunk};
#pragma unroll 1
  while (at.first < share.end_chunk) {
    const int n_chunks = min(kCount, share.end_chunk - at.first);
    const int first_position = at.first * kAttentionChunk;
    const int in_use = min(n_chunks * kAttentionChunk, share.position + 1 - first_position);
    if (at.tiles_from != at.first) {
      at.tiles_from = at.first;
      if (t < n_chunks) {
        shared.tile[t] = args.kv.tile_offset(share.sequence, first_position + t * kAttentionChunk,
                                             share.kv_head);
      }
      __syncthreads();
    }
    const int available = warm_up ? min(in_use, max(0, fresh - first_position)) : in_use;
    if (!service && at.copied < available) {
      copy_positions<Element, Key, kCount>(args.kv, shared.tile, at.copied, available, row_bytes,
                                           memory);
    }
    at.copied = available;
    pass.heads = min(heads_at_once, share.n_heads - at.h0);
    const int pass_chunks = min(chunks_at_once, n_chunks - at.c0);
    if (!warm_up) {
      load_pass_queries(args.q + first_value + static_cast<size_t>(at.h0 * head_dim), pass.heads,
                        head_dim, shared);
    }
    wait_for_copies();
    __syncthreads();
    // Where the pass begins. A warm-up takes a few positions.
    const int begin = at.c0 * kAttentionChunk;
    pass.count = min(warm_up ? 5 : pass_chunks * kAttentionChunk, in_use - begin);
    if (!service) {
      score_pass<Element, Key>(pass, keys + begin * head_dim, head_dim, scale, shared);
      // Values are summed by fours.
      for (int i = t; i < (-in_use & 3) * head_dim; i += kThreads)
        values[in_use * head_dim + i] = 0;
    }
    __syncthreads();
    if (pass.count_of(t / 32) > 0) weigh_slot(t / 32, pass.count_of(t / 32), shared);
    __syncthreads();

    const int slot = service ? t - kThreads : own_slot;
    const int in_slot = (max(0, pass.count_of(slot)) + 3) & ~3;
    const int chunk = pass.chunk_of(slot);
    const bool merges = share.alone || warm_up;
    float* const state =
        in_slot > 0 ? states.of(args, item.row, share.first_head + at.h0 + pass.head_of(slot),
                                at.first + at.c0 + chunk)
                    : nullptr;
    if (service) {
      serve_pass(slot, in_slot, merges, pass_chunks, state, head_dim, shared);
    } else if (in_slot > 0 && own_d < head_dim) {
      const float2 o = weighted_values(
          shared.p[slot], values + (begin + chunk * kAttentionChunk) * head_dim + own_d, head_dim,
          in_slot);
      float* to = (merges ? shared.o[slot] : state) + own_d;
      to[0] = o.x;
      to[1] = o.y;
    }
    __syncthreads();
    if (merges && t < head_dim) {
      *(warm_up ? shared.discarded + t : args.out + first_value + t) =
          merge_own(pass_chunks, t, shared);
    }
    if (warm_up) {
      // The same chunks again. What this pass has written is fetched in a second round of copies.
      warm_up = false;
      wait_for_previous();
      if (share.alone) let_next_start();
      continue;
    }
    at.advance(chunks_at_once, n_chunks, heads_at_once, share.n_heads, kCount);
  }
  if (share.alone) return;
  if (!count_last(states.done + item.row * args.kv.kv_heads + share.kv_head, share.workers,
                  shared)) {
    return;
  }
  merge_states<kDims>(args, states, item.row, share.first_head, group, share.chunks, memory,
                      2 * kCount * tile_words * 16);
}

// Block (i, r): item i of row r.
template <class Element, int kDims, bool kExact, int kCount>
__global__ void __launch_bounds__(kThreads + 32, kDims <= 128 ? 3 : 1)
    decode_kernel(AttentionArgs args, States states, int group, float scale) {
  extern __shared__ uint4 memory[];
  const DecodeItem item{static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x),
                        static_cast<int>(gridDim.x)};
  decode_item<Element, kDims, kExact, kCount>(args, states, group, scale, item, memory);
}

// The instance for plan.slots slots: kCount, or half, a quarter, ... of it.
template <class Element, int kDims, bool kExact, int kCount>
void launch_slots(const DecodePlan& plan, const AttentionArgs& args, const Workspace& workspace,
                  cudaStream_t stream) {
  if constexpr (kCount > 1) {
    if (plan.slots < kCount) {
      launch_slots<Element, kDims, kExact, kCount / 2>(plan, args, workspace, stream);
      return;
    }
  }
  launch(decode_kernel<Element, kDims, kExact, kCount>, plan.launch, stream, args,
         States{workspace.attention, workspace.attention_done, workspace.max_chunks,
                attention_state(args.kv.head_dim)},
         args.heads / args.kv.kv_heads, attention_scale(args.kv.head_dim));
}

template <class Element, int kDims>
void launch_dims(const DecodePlan& plan, const AttentionArgs& args, const Workspace& workspace,
                 cudaStream_t stream) {
  constexpr int kCount = decode_slots(kDims, sizeof(Element));
  if (plan.exact) {
    launch_slots<Element, kDims, true, kCount>(plan, args, workspace, stream);
  } else {
    launch_slots<Element, kDims, false, kCount>(plan, args, workspace, stream);
  }
}

template <class Element>
void launch_element(const DecodePlan& plan, const AttentionArgs& args, const Workspace& workspace,
                    cudaStream_t stream) {
  if (plan.dims == 64) {
    launch_dims<Element, 64>(plan, args, workspace, stream);
  } else if (plan.dims == 128) {
    launch_dims<Element, 128>(plan, args, workspace, stream);
  } else {
    launch_dims<Element, 256>(plan, args, workspace, stream);
  }
}

}  // namespace

void launch_attention(const DecodePlan& plan, const AttentionArgs& args, const Workspace& workspace,
                      cudaStream_t stream) {
  if (args.kv.type == KvType::kF16) {
    launch_element<uint16_t>(plan, args, workspace, stream);
  } else {
    launch_element<float>(plan, args, workspace, stream);
  }
}

}  // namespace edgellm::cuda
