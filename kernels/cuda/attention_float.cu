// Attention over a float32 cache, in the canonical order (kernels/ops.h): for proofs against other
// programs, not for speed. A block takes one query head of one row, each of its warps a chunk at a
// time.
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"

namespace edgellm::cuda {
namespace {

constexpr int kLaneDims = kMaxHeadDim / 32;  // lane l has dimensions l, l + 32, ...

// The state of a chunk: maximum, sum of the weights, weighted values.
struct ChunkState {
  float max, sum;
  float o[kMaxHeadDim];
};

// q . k, as canonical_sum folds it: the partial sums of its 256 that are 128, 64 and 32 apart lie
// in one lane.
__device__ __forceinline__ float dot(const float (&q)[kLaneDims], const float* key, int head_dim) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float partial[kLaneDims];
#pragma unroll
  for (int j = 0; j < kLaneDims; ++j) {
    const int d = lane + 32 * j;
    partial[j] = d < head_dim ? fmaf(q[j], key[d], 0.0f) : 0.0f;
  }
#pragma unroll
  for (int width = kLaneDims / 2; width >= 1; width /= 2) {
#pragma unroll
    for (int j = 0; j < width; ++j) partial[j] += partial[j + width];
  }
  return fold_warp(partial[0]) + 0.0f;
}

// One chunk of `count` positions by a warp, which leaves its state.
__device__ __forceinline__ void attend_chunk(const KvCache& kv, size_t tile, int count, float scale,
                                             const float (&q)[kLaneDims], ChunkState& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head_dim = kv.head_dim;
  const float* keys = static_cast<const float*>(kv.k) + tile;
  const float* values = static_cast<const float*>(kv.v) + tile;
  float score[kAttentionChunk / 32] = {-INFINITY, -INFINITY};  // of positions lane and lane + 32
  float max = -INFINITY;
#pragma unroll 4
  for (int j = 0; j < count; ++j) {
    const float s = dot(q, keys + value_index(j, 0, head_dim), head_dim) * scale;
    if (lane == j % 32) score[j / 32] = s;
    max = fmaxf(max, s);
  }
  float weight[kAttentionChunk / 32];
#pragma unroll
  for (int i = 0; i < kAttentionChunk / 32; ++i) weight[i] = canonical_exp(score[i] - max);
  float sum = 0.0f;
  float o[kLaneDims] = {};
#pragma unroll 4
  for (int j = 0; j < count; ++j) {
    const float p = __shfl_sync(kAllLanes, weight[j / 32], j % 32);
    sum += p;
#pragma unroll
    for (int n = 0; n < kLaneDims; ++n) {
      const int d = lane + 32 * n;
      if (d < head_dim) o[n] = fmaf(p, values[value_index(j, d, head_dim)], o[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kLaneDims; ++n) state.o[lane + 32 * n] = o[n];
  if (lane == 0) {
    state.max = max;
    state.sum = sum;
  }
}

__device__ __forceinline__ void attend(const AttentionArgs& args, int row, int head, float scale,
                                       ChunkState (&states)[kWarps]) {
  const KvCache& kv = args.kv;
  const int head_dim = kv.head_dim;
  const int kv_head = head / (args.heads / kv.kv_heads);
  const int sequence = args.places.sequence[row];
  const int length = args.places.position[row] + 1;
  const int t = static_cast<int>(threadIdx.x);
  const size_t at =
      (static_cast<size_t>(row) * static_cast<size_t>(args.heads) + static_cast<size_t>(head)) *
      static_cast<size_t>(head_dim);
  float q[kLaneDims];
#pragma unroll
  for (int j = 0; j < kLaneDims; ++j) {
    const int d = t % 32 + 32 * j;
    q[j] = d < head_dim ? args.q[at + static_cast<size_t>(d)] : 0.0f;
  }
  float max = 0.0f;
  float sum = 0.0f;
  float o = 0.0f;
  const int chunks = (length - 1) / kAttentionChunk + 1;
#pragma unroll 1
  for (int first = 0; first < chunks; first += kWarps) {
    const int c = first + t / 32;
    if (c < chunks) {
      const int begin = c * kAttentionChunk;
      attend_chunk(kv, kv.tile_offset(sequence, begin, kv_head),
                   min(kAttentionChunk, length - begin), scale, q, states[t / 32]);
    }
    __syncthreads();
    for (int i = 0; i < min(kWarps, chunks - first); ++i) {
      const ChunkState& state = states[i];
      if (first + i == 0) {
        max = state.max;
        sum = state.sum;
        o = state.o[t];
        continue;
      }
      const float larger = fmaxf(max, state.max);
      const float a = canonical_exp(max - larger);
      const float b = canonical_exp(state.max - larger);
      max = larger;
      sum = fmaf(sum, a, state.sum * b);
      o = fmaf(o, a, state.o[t] * b);
    }
    __syncthreads();
  }
  if (t < head_dim) args.out[at + static_cast<size_t>(t)] = o / sum;
}

// The grid: x the head, y the row.
__global__ void __launch_bounds__(kThreads) float_kernel(AttentionArgs args, float scale) {
  static_assert(kThreads >= kMaxHeadDim);
  __shared__ ChunkState states[kWarps];
  let_next_start();
  wait_for_previous();
  attend(args, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x), scale, states);
}

// Dimension d of a row's keys and values into the cache.
__device__ __forceinline__ void append(const AttentionArgs& args, int row, int kv_head, int d) {
  const KvCache& kv = args.kv;
  if (d >= kv.head_dim) return;
  const int position = args.places.position[row];
  const size_t to = kv.tile_offset(args.places.sequence[row], position, kv_head) +
                    static_cast<size_t>(value_index(position, d, kv.head_dim));
  const size_t from =
      (static_cast<size_t>(row) * static_cast<size_t>(kv.kv_heads) + static_cast<size_t>(kv_head)) *
          static_cast<size_t>(kv.head_dim) +
      static_cast<size_t>(d);
  static_cast<float*>(kv.k)[to] = args.k[from];
  static_cast<float*>(kv.v)[to] = args.v[from];
}

// The grid: x the kv head, y the row.
__global__ void __launch_bounds__(kThreads) append_kernel(AttentionArgs args) {
  let_next_start();
  wait_for_previous();
  append(args, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x),
         static_cast<int>(threadIdx.x));
}

}  // namespace

void launch_attention(const FloatPlan& plan, const AttentionArgs& args, cudaStream_t stream) {
  if (args.k != nullptr) {
    launch(append_kernel,
           dim3(static_cast<unsigned>(args.kv.kv_heads), static_cast<unsigned>(args.rows)),
           dim3(kThreads), 0, stream, args);
  }
  launch(float_kernel, plan.launch, stream, args, attention_scale(args.kv.head_dim));
}

}  // namespace edgellm::cuda
