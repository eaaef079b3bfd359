// FlashDecoding with a fixed order (kernels/ops.h): chunks of 64 positions in parallel, merged in
// ascending order.
//
// Few rows: a block takes every n-th chunk of a kv head for one row, writes the chunks' states, and
// the block that finishes last merges them. Many rows: a block takes all chunks of a (row, kv head)
// and merges as it goes. The arithmetic is the same.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"

namespace edgellm::cuda {
namespace {

// Query heads of a kv head that a block works on at a time.
constexpr int kMaxHeads = 8;
// Lanes that share a score: lane t sums dimensions t, t + 8, ..., the last three fold steps cross
// lanes.
constexpr int kScoreLanes = 8;

__device__ inline float load_kv(const void* pool, KvType type, size_t index) {
  return type == KvType::kF16 ? from_half(static_cast<const uint16_t*>(pool)[index])
                              : static_cast<const float*>(pool)[index];
}

// Partial sum d of canonical_sum's products after the fold steps above Width: dimensions d,
// d + Width, ... as a binary tree. Dimensions beyond head_dim are absent.
template <int Width, int kDims, class Product>
__device__ __forceinline__ float fold_products(const Product& product, int d) {
  if constexpr (Width == kDims) {
    return product(d);
  } else {
    return fold_products<2 * Width, kDims>(product, d) +
           fold_products<2 * Width, kDims>(product, d + Width);
  }
}

// Working memory of a block. head_dim is at most 256.
struct Shared {
  float q[kMaxHeads][256];
  float p[kMaxHeads][kAttentionChunk];
  float max[kMaxHeads];
  float sum[kMaxHeads];
  int last;
};

struct Item {
  int row;
  int kv_head;
  int first_head;  // query heads first_head .. first_head + heads - 1
  int heads;
};

// Softmax numerators and their sum for one chunk, in shared.p / max / sum. Ends with a barrier.
template <int kDims>
__device__ void score_chunk(const AttentionArgs& args, const Item& item, size_t tile, int count,
                            float scale, Shared& shared) {
  const int head_dim = args.kv.head_dim;
  const int lane = static_cast<int>(threadIdx.x) % kScoreLanes;
  for (int i = static_cast<int>(threadIdx.x) / kScoreLanes; i < kAttentionChunk;
       i += kThreads / kScoreLanes) {
    // Lanes of one position stay together: every lane takes part in the shuffles below.
    float k[kDims / kScoreLanes];
#pragma unroll
    for (int m = 0; m < kDims / kScoreLanes; ++m) {
      const int d = lane + kScoreLanes * m;
      k[m] = i < count && d < head_dim
                 ? load_kv(args.kv.k, args.kv.type, tile + static_cast<size_t>(i * head_dim + d))
                 : 0.0f;
    }
    for (int h = 0; h < item.heads; ++h) {
      const float* q = shared.q[h] + lane;
      float sum = fold_products<1, kDims / kScoreLanes>(
          [&](int m) { return q[kScoreLanes * m] * k[m]; }, 0);
      for (int width = kScoreLanes / 2; width >= 1; width /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, width);
      }
      if (lane == 0) shared.p[h][i] = (sum + 0.0f) * scale;
    }
  }
  __syncthreads();
  // One warp a head: the chunk's maximum, then exp; the sum in ascending order by one lane.
  for (int h = static_cast<int>(threadIdx.x) / 32; h < item.heads; h += kWarps) {
    const int l = static_cast<int>(threadIdx.x) % 32;
    float max = -INFINITY;
    for (int i = l; i < count; i += 32) max = fmaxf(max, shared.p[h][i]);
    for (int width = 16; width >= 1; width /= 2) {
      max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, width));
    }
    for (int i = l; i < count; i += 32) shared.p[h][i] = canonical_exp(shared.p[h][i] - max);
    __syncwarp();
    if (l == 0) {
      float sum = 0.0f;
      for (int i = 0; i < count; ++i) sum += shared.p[h][i];
      shared.max[h] = max;
      shared.sum[h] = sum;
    }
  }
  __syncthreads();
}

// o[d] of one head and dimension: sum of p * v in ascending position.
__device__ inline float weigh_values(const AttentionArgs& args, size_t tile, int count,
                                     const float* p, int d) {
  float o = 0.0f;
  for (int j = 0; j < count; ++j) {
    o = fmaf(p[j],
             load_kv(args.kv.v, args.kv.type, tile + static_cast<size_t>(j * args.kv.head_dim + d)),
             o);
  }
  return o;
}

__device__ inline void load_q(const AttentionArgs& args, const Item& item, int dims,
                              Shared& shared) {
  const int head_dim = args.kv.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < item.heads * dims; i += kThreads) {
    const int h = i / dims;
    const int d = i % dims;
    shared.q[h][d] = d < head_dim
                         ? args.q[(static_cast<size_t>(item.row) * static_cast<size_t>(args.heads) +
                                   static_cast<size_t>(item.first_head + h)) *
                                      static_cast<size_t>(head_dim) +
                                  static_cast<size_t>(d)]
                         : 0.0f;
  }
  __syncthreads();
}

__device__ inline float* out_of(const AttentionArgs& args, const Item& item, int h) {
  return args.out + (static_cast<size_t>(item.row) * static_cast<size_t>(args.heads) +
                     static_cast<size_t>(item.first_head + h)) *
                        static_cast<size_t>(args.kv.head_dim);
}

// The merge of chunk c's (max, sum, o) into a running state, for one dimension.
struct State {
  float max = 0.0f;
  float sum = 0.0f;
  float o = 0.0f;

  __device__ void merge(int chunk, float chunk_max, float chunk_sum, float chunk_o) {
    if (chunk == 0) {
      max = chunk_max;
      sum = chunk_sum;
      o = chunk_o;
      return;
    }
    const float new_max = fmaxf(max, chunk_max);
    const float a = canonical_exp(max - new_max);
    const float b = canonical_exp(chunk_max - new_max);
    max = new_max;
    sum = fmaf(sum, a, chunk_sum * b);
    o = fmaf(o, a, chunk_o * b);
  }
};

// A chunk's state in the workspace: max, sum, then o[head_dim].
__device__ inline float* state_of(const AttentionArgs& args, const Workspace& workspace, int row,
                                  int head, int chunk) {
  return workspace.attention +
         ((static_cast<size_t>(row) * static_cast<size_t>(args.heads) + static_cast<size_t>(head)) *
              static_cast<size_t>(workspace.max_chunks) +
          static_cast<size_t>(chunk)) *
             static_cast<size_t>(args.kv.head_dim + 2);
}

template <int kDims>
__global__ void decode_kernel(AttentionArgs args, Workspace workspace, int group, float scale) {
  __shared__ Shared shared;
  const int head_dim = args.kv.head_dim;
  const int row = static_cast<int>(blockIdx.z);
  const int kv_head = static_cast<int>(blockIdx.x);
  const int length = args.places.position[row] + 1;
  const int chunks = (length + kAttentionChunk - 1) / kAttentionChunk;
  for (int first = 0; first < group; first += kMaxHeads) {
    const Item item{row, kv_head, kv_head * group + first, min(kMaxHeads, group - first)};
    load_q(args, item, kDims, shared);
    for (int c = static_cast<int>(blockIdx.y); c < chunks; c += static_cast<int>(gridDim.y)) {
      const size_t tile =
          args.kv.tile_offset(args.places.sequence[row], c * kAttentionChunk, kv_head);
      const int count = min(kAttentionChunk, length - c * kAttentionChunk);
      score_chunk<kDims>(args, item, tile, count, scale, shared);
      for (int i = static_cast<int>(threadIdx.x); i < item.heads * head_dim; i += kThreads) {
        const int h = i / head_dim;
        const int d = i % head_dim;
        float* state = state_of(args, workspace, row, item.first_head + h, c);
        state[2 + d] = weigh_values(args, tile, count, shared.p[h], d);
        if (d == 0) {
          state[0] = shared.max[h];
          state[1] = shared.sum[h];
        }
      }
      __syncthreads();
    }
  }

  // Every block has written its states before it counts itself done (fence, then the counter); the
  // block that counts last therefore sees all of them (counter, then fence).
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* done = workspace.attention_done + row * args.kv.kv_heads + kv_head;
    const int before = atomicAdd(done, 1);
    shared.last = before == static_cast<int>(gridDim.y) - 1;
    if (shared.last) *done = 0;
  }
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  for (int i = static_cast<int>(threadIdx.x); i < group * head_dim; i += kThreads) {
    const int head = kv_head * group + i / head_dim;
    const int d = i % head_dim;
    State state;
    for (int c = 0; c < chunks; ++c) {
      const float* chunk = state_of(args, workspace, row, head, c);
      state.merge(c, __ldcg(chunk), __ldcg(chunk + 1), __ldcg(chunk + 2 + d));
    }
    out_of(args, Item{row, kv_head, head, 1}, 0)[d] = state.o / state.sum;
  }
}

template <int kDims>
__global__ void prefill_kernel(AttentionArgs args, int group, float scale) {
  // Results that one thread carries along: heads * head_dim over the block's threads.
  constexpr int kPerThread = kMaxHeads * 256 / kThreads;
  __shared__ Shared shared;
  const int head_dim = args.kv.head_dim;
  const int row = static_cast<int>(blockIdx.x);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int length = args.places.position[row] + 1;
  const int chunks = (length + kAttentionChunk - 1) / kAttentionChunk;
  for (int first = 0; first < group; first += kMaxHeads) {
    const Item item{row, kv_head, kv_head * group + first, min(kMaxHeads, group - first)};
    load_q(args, item, kDims, shared);
    State states[kPerThread];
    for (int c = 0; c < chunks; ++c) {
      const size_t tile =
          args.kv.tile_offset(args.places.sequence[row], c * kAttentionChunk, kv_head);
      const int count = min(kAttentionChunk, length - c * kAttentionChunk);
      score_chunk<kDims>(args, item, tile, count, scale, shared);
#pragma unroll
      for (int n = 0; n < kPerThread; ++n) {
        const int i = static_cast<int>(threadIdx.x) + n * kThreads;
        if (i >= item.heads * head_dim) continue;
        const int h = i / head_dim;
        states[n].merge(c, shared.max[h], shared.sum[h],
                        weigh_values(args, tile, count, shared.p[h], i % head_dim));
      }
      __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < kPerThread; ++n) {
      const int i = static_cast<int>(threadIdx.x) + n * kThreads;
      if (i >= item.heads * head_dim) continue;
      out_of(args, item, i / head_dim)[i % head_dim] = states[n].o / states[n].sum;
    }
  }
}

template <int kDims>
void launch_attention(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream) {
  const int group = args.heads / args.kv.kv_heads;
  const float scale = attention_scale(args.kv.head_dim);
  if (args.rows > kMaxInlineRows) {
    launch(prefill_kernel<kDims>,
           dim3(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.kv.kv_heads)),
           dim3(kThreads), 0, stream, args, group, scale);
    return;
  }
  // About two blocks for each SM of a large GPU; each takes every n-th chunk, so the grid does not
  // depend on the position.
  const int splits = max(1, min(workspace.max_chunks, 256 / (args.rows * args.kv.kv_heads)));
  launch(decode_kernel<kDims>,
         dim3(static_cast<unsigned>(args.kv.kv_heads), static_cast<unsigned>(splits),
              static_cast<unsigned>(args.rows)),
         dim3(kThreads), 0, stream, args, workspace, group, scale);
}

}  // namespace

void attention(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (args.kv.head_dim <= 64) {
    launch_attention<64>(args, workspace, stream);
  } else if (args.kv.head_dim <= 128) {
    launch_attention<128>(args, workspace, stream);
  } else {
    launch_attention<256>(args, workspace, stream);
  }
}

}  // namespace edgellm::cuda
