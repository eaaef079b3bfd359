// The results of a row in decode (attention_decode.cu): chunks merged as a block goes, or from the
// states that several blocks have left.
#pragma once

#include "kernels/cuda/attention_decode_chunk.cuh"
#include "kernels/cuda/device/code_row.cuh"
#include "kernels/cuda/device/copy.cuh"

namespace edgellm::cuda {

// Turns sums `from` of shared.rows back and writes them as the result of head `head`, by a warp.
template <class D>
__device__ __forceinline__ void write_result(const AttentionArgs& args, const DecodeItem& item,
                                             const typename D::Shared& shared, int from, int head) {
  const int head_dim = args.kv.head_dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  WarpRow<D::kSlabs> row;
  row.load(shared.rows[from], head_dim);
  row.turn(head_dim);
  const float factor = output_factor(shared.sum[from], head_dim, args.kv.type);
  float* out = args.out + (static_cast<size_t>(item.row) * static_cast<size_t>(args.heads) +
                           static_cast<size_t>(item.first_head + head)) *
                              static_cast<size_t>(head_dim);
#pragma unroll
  for (int j = 0; j < D::kSlabs; ++j) {
    if (lane + 32 * j < head_dim) out[lane + 32 * j] = row.x[j] * factor;
  }
}

// Merges the chunks of head `head` from the workspace into shared.rows[0] and shared.sum, with the
// whole block; `memory` of `bytes` bytes.
template <class D>
__device__ void merge_head(const AttentionArgs& args, const DecodeItem& item,
                           const ChunkStates& states, int head, typename D::Shared& shared,
                           float* memory, int bytes) {
  const int head_dim = args.kv.head_dim;
  const int t = static_cast<int>(threadIdx.x);
  const int lane = t % 32;
  // States of as many chunks as there is room for, and their factors.
  const int batch = min(item.chunks, bytes / 4 / (states.size + 4));
  float4* const factors = reinterpret_cast<float4*>(memory + batch * states.size);
  const float* from = states.of(item.row, args.heads, item.first_head + head, 0);
  float running = -INFINITY;
  float sum = 0.0f;
  float o = 0.0f;
#pragma unroll 1
  for (int first = 0; first < item.chunks; first += batch) {
    const int count = min(batch, item.chunks - first);
    const int words = states.size / 4;
    __syncthreads();
    for (int w = t; w < count * words; w += D::kThreads) {
      copy_async(memory + 4 * w, from + 4 * (first * words + w));
    }
    wait_for_copies();
    __syncthreads();
    if (t < 32) {
#pragma unroll 1
      for (int c = lane; c - lane < count; c += 32) {
        const float* state = memory + min(c, count - 1) * states.size + head_dim;
        const float max = c < count ? state[0] : -INFINITY;
        // Prefix maxima, so that the factors of all chunks are found at once.
        float prefix = fmaxf(max, running);
        for (int width = 1; width < 32; width *= 2) {
          const float other = __shfl_up_sync(kAllLanes, prefix, width);
          if (lane >= width) prefix = fmaxf(prefix, other);
        }
        float before = __shfl_up_sync(kAllLanes, prefix, 1);
        if (lane == 0) before = running;
        if (c < count) {
          factors[c] = {power_of_two(before - prefix), power_of_two(max - prefix), state[1], 0.0f};
        }
        running = __shfl_sync(kAllLanes, prefix, 31);
      }
    }
    __syncthreads();
    if (t < head_dim) {
#pragma unroll 4
      for (int c = 0; c < count; ++c) {
        const float4 f = factors[c];
        sum = fmaf(f.z, f.y, sum * f.x);
        o = fmaf(memory[c * states.size + t], f.y, o * f.x);
      }
    }
  }
  if (t < head_dim) shared.rows[0][t] = o;
  if (t == 0) shared.sum[0] = sum;
  __syncthreads();
}

__device__ __forceinline__ int32_t load_acquire(const int32_t* from) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// The last blocks of a row to end merge its heads: as many blocks as there are heads, if there are.
// The others have all begun by then, since blocks begin in the order of their numbers and those
// that wait are few: so waiting is safe. Returns the number of this block among the `mergers`,
// below 0 for none of them; all states are there then.
template <class D>
__device__ __forceinline__ int join_mergers(const DecodeItem& item, int mergers, int32_t* done,
                                            typename D::Shared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    shared.ticket = atomicAdd(done, 1);
  }
  __syncthreads();
  const int part = shared.ticket - (item.workers - mergers);
  if (part < 0) return part;
  if (threadIdx.x == 0) {
    while (load_acquire(done) < item.workers) {
    }
  }
  __syncthreads();
  return part;
}

// The result of heads whose chunks a block has taken alone: merged sums, and the sums of the
// weights.
template <class D>
struct MergedHeads {
  float max[D::kColumns];
  float sum[D::kColumns];
  float o[D::kDimTiles][D::kColumns][2];

  __device__ __forceinline__ MergedHeads() : sum{}, o{} {
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) max[n] = -INFINITY;
  }

  // Chunk u of a round.
  __device__ __forceinline__ void add(const ValueSums<D>& sums, const typename D::Shared& shared,
                                      int u) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) {
      add(n, shared.state[u][4 * n + t], [&](int i, int h) { return sums.of[u][i][n][h]; });
    }
  }

  // What the other blocks of a cluster have sent.
  __device__ __forceinline__ void add(const typename D::SentChunks& sent, int chunks) {
#pragma unroll
    for (int c = 0; c < D::kSent; ++c) {
      if (c == chunks) break;
      const float2 values = sent.values[c][threadIdx.x];
      add(0, sent.state[c][threadIdx.x % 4],
          [&](int, int h) { return h == 0 ? values.x : values.y; });
    }
  }

  // Into shared memory, for write_result().
  __device__ __forceinline__ void share(int slabs, typename D::Shared& shared) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4;
    const int t = lane % 4;
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < D::kDimTiles; ++i) {
        const int d = 16 * (warp + D::kWarps * i) + g;
        if (d >= 32 * slabs) break;
        shared.rows[4 * n + t][d] = o[i][n][0];
        shared.rows[4 * n + t][d + 8] = o[i][n][1];
      }
      if (warp == 0 && g == 0) shared.sum[4 * n + t] = sum[n];
    }
  }

 private:
  // A chunk of head 4 n + t: its maximum and the sum of its weights; value(i, h) its sums of
  // values.
  template <class Values>
  __device__ __forceinline__ void add(int n, const float2& state, const Values& value) {
    const float larger = fmaxf(max[n], state.x);
    const float before = power_of_two(max[n] - larger);
    const float chunk = power_of_two(state.x - larger);
    max[n] = larger;
    sum[n] = fmaf(state.y, chunk, sum[n] * before);
#pragma unroll
    for (int i = 0; i < D::kDimTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        o[i][n][h] = fmaf(value(i, h), chunk, o[i][n][h] * before);
      }
    }
  }
};

}  // namespace edgellm::cuda
