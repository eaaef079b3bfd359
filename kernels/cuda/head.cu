// embed and head.
#include <cuda_fp16.h>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"

namespace edgellm::cuda {
namespace {

__global__ void embed_kernel(EmbedArgs args) {
  const int row = static_cast<int>(blockIdx.x);
  const int dim = args.table.cols;
  let_next_start();
  wait_for_previous();
  const size_t from = static_cast<size_t>(args.ids[row]) * static_cast<size_t>(dim);
  float* x = args.x + static_cast<size_t>(row) * static_cast<size_t>(dim);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
    x[i] = widen(args.table.data, args.table.type, from + static_cast<size_t>(i));
  }
}

__global__ void norm_kernel(HeadArgs args) {
  __shared__ float partials[kPartials];
  const int t = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x);
  const int dim = args.w.cols;
  let_next_start();
  wait_for_previous();
  const float* x = args.x + static_cast<size_t>(args.row_list[row]) * static_cast<size_t>(dim);
  float partial = 0.0f;
  for (int i = t; i < dim; i += kThreads) partial = fmaf(x[i], x[i], partial);
  partials[t] = partial;
  __syncthreads();
  const float r = rms_factor(fold_partials(partials), dim, args.eps);
  float* normed = args.normed + static_cast<size_t>(row) * static_cast<size_t>(dim);
  for (int i = t; i < dim; i += kThreads) normed[i] = args.gain[i] * (x[i] * r);
}

// Larger key: larger logit, then lower id. -0 counts as +0.
__device__ inline unsigned long long key_of(float logit, int id) {
  uint32_t bits = float_to_bits(logit + 0.0f);
  bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

// Two 16-bit values of a matrix row, the lower one first.
template <DenseType kType>
__device__ inline float2 widen_pair(uint32_t pair) {
  if constexpr (kType == DenseType::kBF16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
}

// canonical_sum of a row of w with y by one warp; every lane returns it.
//
// `kVector`: rows are 16-bit and start at 16-byte boundaries; lane l loads eight columns at once
// and holds partial sums 8 l .. 8 l + 7. The first fold steps cross lanes; each sends half of what
// it has left to its partner, so that 12 shuffles do it. Else lane l holds l, l + 32, ..., l + 224.
template <DenseType kType, bool kVector>
__device__ float row_dot(const HeadArgs& args, size_t base, const float* y, int lane) {
  const int dim = args.w.cols;
  float p[8] = {};
  if constexpr (kVector) {
    const uint16_t* w = static_cast<const uint16_t*>(args.w.data) + base;
#pragma unroll 4
    for (int c = 8 * lane; c < dim; c += kPartials) {
      const uint4 packed = __ldg(reinterpret_cast<const uint4*>(w + c));
      const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
      // y is stored in two halves: columns 0 to 3 of every eight, then columns 4 to 7.
      const float4 low = reinterpret_cast<const float4*>(y)[c / 8];
      const float4 high = reinterpret_cast<const float4*>(y + dim / 2)[c / 8];
      const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = widen_pair<kType>(words[i]);
        p[2 * i] = fmaf(pair.x, v[2 * i], p[2 * i]);
        p[2 * i + 1] = fmaf(pair.y, v[2 * i + 1], p[2 * i + 1]);
      }
    }
    // Fold widths 128, 64, 32: partners 16, 8, 4 lanes away; keep the half that the lane's bit
    // names.
#pragma unroll
    for (int step = 0; step < 3; ++step) {
      const int left = 4 >> step;
      const bool upper = (lane & (16 >> step)) != 0;
#pragma unroll
      for (int i = 0; i < left; ++i) {
        const float keep = upper ? p[i + left] : p[i];
        const float give = upper ? p[i] : p[i + left];
        p[i] = keep + __shfl_xor_sync(kAllLanes, give, 16 >> step);
      }
    }
    // Widths 16, 8: lanes 2, 1 away. Widths 4, 2, 1: those that kept the other halves.
    float sum = p[0];
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 16);
    sum += __shfl_xor_sync(kAllLanes, sum, 8);
    sum += __shfl_xor_sync(kAllLanes, sum, 4);
    return sum + 0.0f;
  } else {
    for (int begin = 0; begin < dim; begin += kPartials) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int c = begin + 32 * k + lane;
        if (c < dim) {
          p[k] = fmaf(widen(args.w.data, kType, base + static_cast<size_t>(c)), y[c], p[k]);
        }
      }
    }
    return fold_warp(((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))) + 0.0f;
  }
}

template <DenseType kType, bool kVector>
__global__ void __launch_bounds__(kThreads) logits_kernel(HeadArgs args, Workspace workspace) {
  extern __shared__ float4 y_memory[];
  float* y = reinterpret_cast<float*>(y_memory);  // [dim]
  __shared__ unsigned long long best[kWarps];
  __shared__ bool last;
  const int t = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  const int dim = args.w.cols;
  let_next_start();
  wait_for_previous();
  const float* normed = args.normed + static_cast<size_t>(row) * static_cast<size_t>(dim);
  for (int i = t; i < dim; i += kThreads) {
    y[kVector ? (i % 8 < 4 ? 0 : dim / 2) + i / 8 * 4 + i % 4 : i] = normed[i];
  }
  __syncthreads();
  const int warp = t / 32;
  const int lane = t % 32;
  unsigned long long mine = 0;
  for (int v = static_cast<int>(blockIdx.x) * kWarps + warp; v < args.w.rows;
       v += static_cast<int>(gridDim.x) * kWarps) {
    const float logit =
        row_dot<kType, kVector>(args, static_cast<size_t>(v) * static_cast<size_t>(dim), y, lane);
    if (lane != 0) continue;
    args.logits[static_cast<size_t>(row) * static_cast<size_t>(args.w.rows) +
                static_cast<size_t>(v)] = logit;
    if (!isfinite(logit)) set_fault(args.fault, args.layers + 1);
    bool banned = false;
    for (int b = 0; b < args.n_banned; ++b) banned = banned || args.banned[b] == v;
    if (!banned) mine = max(mine, key_of(logit, v));
  }
  if (args.argmax == nullptr) return;
  if (lane == 0) best[warp] = mine;
  __syncthreads();
  if (t == 0) {
    for (int w = 1; w < kWarps; ++w) best[0] = max(best[0], best[w]);
    atomicMax(workspace.best + row, best[0]);
    // The maximum is in before the block counts itself done.
    __threadfence();
    last = atomicAdd(workspace.head_done, 1) == static_cast<int>(gridDim.x * gridDim.y) - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int r = t; r < args.rows; r += kThreads) {
    const unsigned long long key = atomicExch(workspace.best + r, 0ull);
    args.argmax[r] = key == 0 ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
  }
  if (t == 0) *workspace.head_done = 0;
}

template <DenseType kType>
void launch_logits(const HeadArgs& args, const Workspace& workspace, cudaStream_t stream) {
  // Eight blocks of 256 threads fill an SM; a warp takes every n-th row.
  const int blocks = min((args.w.rows + kWarps - 1) / kWarps, 132 * 8);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(args.rows));
  const size_t shared_bytes = static_cast<size_t>(args.w.cols) * sizeof(float);
  if (kType != DenseType::kF32 && args.w.cols % 8 == 0) {
    launch(logits_kernel<kType, kType != DenseType::kF32>, grid, dim3(kThreads), shared_bytes,
           stream, args, workspace);
  } else {
    launch(logits_kernel<kType, false>, grid, dim3(kThreads), shared_bytes, stream, args,
           workspace);
  }
}

}  // namespace

void embed(const EmbedArgs& args, cudaStream_t stream) {
  launch_first(embed_kernel, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream,
               args);
}

void head(const HeadArgs& args, const Workspace& workspace, cudaStream_t stream) {
  launch(norm_kernel, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream, args);
  if (args.w.rows == 0) return;
  switch (args.w.type) {
    case DenseType::kF32:
      launch_logits<DenseType::kF32>(args, workspace, stream);
      return;
    case DenseType::kF16:
      launch_logits<DenseType::kF16>(args, workspace, stream);
      return;
    case DenseType::kBF16:
      launch_logits<DenseType::kBF16>(args, workspace, stream);
      return;
  }
}

}  // namespace edgellm::cuda
