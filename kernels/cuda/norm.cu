// Norms by themselves: of rows that have a second norm behind this one, and of the heads of q and
// k.
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/groups.h"

namespace edgellm::cuda {
namespace {

// Block i: row i.
__global__ void __launch_bounds__(kThreads) norm_rows_kernel(NormArgs args) {
  const size_t at = static_cast<size_t>(blockIdx.x) * static_cast<size_t>(args.dim);
  let_next_start();
  wait_for_previous();
  norm_row(args.x + at, args.gain, args.eps, args.dim, args.normed + at);
}

constexpr int kHeadLoads = kMaxHeadDim / 32;  // of a lane
static_assert(kMaxHeadDim == kPartials, "every term of canonical_sum is a partial sum");

// A warp for each head of each row, those of q first.
__global__ void __launch_bounds__(kThreads) norm_heads_kernel(QkvArgs args) {
  __shared__ float shared[kWarps][kMaxHeadDim];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head_dim = args.head_dim;
  const int q_heads = args.rows * (args.q.rows / head_dim);
  const int k_heads = args.rows * (args.k.rows / head_dim);
  const int number = static_cast<int>(blockIdx.x) * kWarps + warp;
  let_next_start();
  wait_for_previous();
  if (number >= q_heads + k_heads) return;
  const bool is_k = number >= q_heads;
  const int of_matrix = is_k ? number - q_heads : number;
  const int row = of_matrix / ((is_k ? args.k.rows : args.q.rows) / head_dim);
  const float* gain = is_k ? args.k_gain : args.q_gain;
  float* const head = (is_k ? args.k_out : args.q_out) +
                      static_cast<size_t>(of_matrix) * static_cast<size_t>(head_dim);
  float* const normed = shared[warp];
  float y[kHeadLoads];
  float p[kHeadLoads];
#pragma unroll
  for (int k = 0; k < kHeadLoads; ++k) {
    const int i = 32 * k + lane;
    y[k] = i < head_dim ? head[i] : 0.0f;
    p[k] = y[k] * y[k];
  }
  if (gain != nullptr) {
    const float sum =
        fold_warp(((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))) + 0.0f;
    const float r = rms_factor(sum, head_dim, args.eps);
#pragma unroll
    for (int k = 0; k < kHeadLoads; ++k) {
      if (32 * k + lane < head_dim) y[k] = gain[32 * k + lane] * (y[k] * r);
    }
  }
#pragma unroll
  for (int k = 0; k < kHeadLoads; ++k) {
    if (32 * k + lane < head_dim) normed[32 * k + lane] = y[k];
  }
  __syncwarp();
  const int half = head_dim / 2;
  const size_t angles = static_cast<size_t>(args.positions[row]) * static_cast<size_t>(half);
  for (int i = lane; i < half; i += 32) {
    const float cosine = args.rope_cos[angles + static_cast<size_t>(i)];
    const float sine = args.rope_sin[angles + static_cast<size_t>(i)];
    const float low = normed[i];
    const float high = normed[i + half];
    head[i] = low * cosine - high * sine;
    head[i + half] = high * cosine + low * sine;
  }
}

}  // namespace

void norm(const NormArgs& args, cudaStream_t stream) {
  launch(norm_rows_kernel, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream, args);
}

void norm_heads(const QkvArgs& args, cudaStream_t stream) {
  const int heads = args.rows * ((args.q.rows + args.k.rows) / args.head_dim);
  launch(norm_heads_kernel, dim3(static_cast<unsigned>(divide_up(heads, kWarps))), dim3(kThreads),
         0, stream, args);
}

}  // namespace edgellm::cuda
