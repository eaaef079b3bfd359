// embed and head.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"

namespace edgellm::cuda {
namespace {

__global__ void embed_kernel(EmbedArgs args) {
  const int row = static_cast<int>(blockIdx.x);
  const int dim = args.table.cols;
  const size_t from = static_cast<size_t>(args.ids[row]) * static_cast<size_t>(dim);
  float* x = args.x + static_cast<size_t>(row) * static_cast<size_t>(dim);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
    x[i] = widen(args.table.data, args.table.type, from + static_cast<size_t>(i));
  }
}

__global__ void norm_kernel(HeadArgs args) {
  __shared__ Reduction scratch;
  const int row = static_cast<int>(blockIdx.x);
  const int dim = args.w.cols;
  const float* x = args.x + static_cast<size_t>(args.row_list[row]) * static_cast<size_t>(dim);
  float partial = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads)
    partial = fmaf(x[i], x[i], partial);
  const float r = 1.0f / sqrtf(fold_block(partial, scratch) / static_cast<float>(dim) + args.eps);
  float* normed = args.normed + static_cast<size_t>(row) * static_cast<size_t>(dim);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads)
    normed[i] = args.gain[i] * (x[i] * r);
}

// Larger key: larger logit, then lower id. -0 counts as +0.
__device__ inline unsigned long long key_of(float logit, int id) {
  uint32_t bits = float_to_bits(logit + 0.0f);
  bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

// A warp takes a row of the head: lane l holds partial sums l, l + 32, ..., l + 224.
template <DenseType kType>
__global__ void logits_kernel(HeadArgs args, Workspace workspace) {
  extern __shared__ float y[];  // [dim]
  __shared__ unsigned long long best[kWarps];
  __shared__ int last;
  const int row = static_cast<int>(blockIdx.y);
  const int dim = args.w.cols;
  const float* normed = args.normed + static_cast<size_t>(row) * static_cast<size_t>(dim);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) y[i] = normed[i];
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned long long mine = 0;
  for (int v = static_cast<int>(blockIdx.x) * kWarps + warp; v < args.w.rows;
       v += static_cast<int>(gridDim.x) * kWarps) {
    const size_t base = static_cast<size_t>(v) * static_cast<size_t>(dim);
    float p[8] = {};
    int i = 0;
    for (; i + kPartials <= dim; i += kPartials) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int c = i + 32 * k + lane;
        p[k] = fmaf(widen(args.w.data, kType, base + static_cast<size_t>(c)), y[c], p[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int c = i + 32 * k + lane;
      if (c < dim)
        p[k] = fmaf(widen(args.w.data, kType, base + static_cast<size_t>(c)), y[c], p[k]);
    }
    const float logit =
        fold_warp(((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))) + 0.0f;
    if (lane == 0) {
      args.logits[static_cast<size_t>(row) * static_cast<size_t>(args.w.rows) +
                  static_cast<size_t>(v)] = logit;
      if (!isfinite(logit)) set_fault(args.fault, args.layers + 1);
    }
    bool banned = false;
    for (int b = 0; b < args.n_banned; ++b) banned = banned || args.banned[b] == v;
    if (!banned) mine = max(mine, key_of(logit, v));
  }
  if (args.argmax == nullptr) return;
  if (lane == 0) best[warp] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) best[0] = max(best[0], best[w]);
    atomicMax(workspace.best + row, best[0]);
    __threadfence();
    last = atomicAdd(workspace.head_done, 1) == static_cast<int>(gridDim.x * gridDim.y) - 1;
  }
  __syncthreads();
  if (!last) return;
  // All maxima are in: each block's atomicMax came before its count.
  __threadfence();
  for (int r = static_cast<int>(threadIdx.x); r < args.rows; r += kThreads) {
    const unsigned long long key = atomicExch(workspace.best + r, 0ull);
    args.argmax[r] = key == 0 ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
  }
  if (threadIdx.x == 0) *workspace.head_done = 0;
}

}  // namespace

void embed(const EmbedArgs& args, cudaStream_t stream) {
  launch(embed_kernel, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream, args);
}

void head(const HeadArgs& args, const Workspace& workspace, cudaStream_t stream) {
  launch(norm_kernel, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream, args);
  if (args.w.rows == 0) return;
  const unsigned blocks = static_cast<unsigned>(min((args.w.rows + kWarps - 1) / kWarps, 1056));
  const dim3 grid(blocks, static_cast<unsigned>(args.rows));
  const size_t shared_bytes = static_cast<size_t>(args.w.cols) * sizeof(float);
  switch (args.w.type) {
    case DenseType::kF32:
      launch(logits_kernel<DenseType::kF32>, grid, dim3(kThreads), shared_bytes, stream, args,
             workspace);
      return;
    case DenseType::kF16:
      launch(logits_kernel<DenseType::kF16>, grid, dim3(kThreads), shared_bytes, stream, args,
             workspace);
      return;
    case DenseType::kBF16:
      break;
  }
  launch(logits_kernel<DenseType::kBF16>, grid, dim3(kThreads), shared_bytes, stream, args,
         workspace);
}

}  // namespace edgellm::cuda
