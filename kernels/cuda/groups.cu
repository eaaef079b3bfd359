// Ternary products of rows in groups (groups_ops.cuh): the dispatcher, and the arg-max of a ternary
// head.
#include <algorithm>
#include <variant>

#include "kernels/cuda/device/arg_max.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/groups.h"
#include "kernels/cuda/groups_ops.cuh"

namespace edgellm::cuda {
namespace {

// Block (i, j): part i of the logits of row j.
__global__ void __launch_bounds__(kThreads) arg_max_kernel(HeadArgs args, Workspace workspace) {
  __shared__ unsigned long long block_best;
  const int t = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  let_next_start();
  wait_for_previous();
  if (t == 0) block_best = 0;
  __syncthreads();
  const float* logits = args.logits + static_cast<size_t>(row) * static_cast<size_t>(args.w.rows);
  uint64_t best = 0;
  for (int v = static_cast<int>(blockIdx.x) * kThreads + t; v < args.w.rows;
       v += static_cast<int>(gridDim.x) * kThreads) {
    best = max(best, allowed_key(args, v, logits[v]));
  }
  if (best != 0) atomicMax(&block_best, static_cast<unsigned long long>(best));
  __syncthreads();
  if (t == 0) atomicMax(workspace.best + row, block_best);
  end_of_best(args, workspace, static_cast<int>(gridDim.x * gridDim.y));
}

template <class Op>
void run(PickGroups pick, const Input& in, const Op& op, const GroupMatrices& m, int rows,
         const Workspace& workspace, cudaStream_t stream) {
  const LinearSize size{rows, in.cols, op.pairs(), in.gain != nullptr, by_fours(in)};
  std::visit([&](const auto& plan) { multiply(plan, in, op, m, rows, workspace, stream); },
             pick(size, current_device()));
}

}  // namespace

void qkv_groups(const QkvArgs& args, PickGroups pick, const Workspace& workspace,
                cudaStream_t stream) {
  const QkvOp op{args.q,        args.k,        args.v,         words_per_row(args.dim),
                 args.rope_cos, args.rope_sin, args.positions, args.q_out,
                 args.k_out,    args.v_out,    args.head_dim};
  run(pick, {args.x, args.gain, args.eps, args.dim, args.fault, args.layer}, op,
      matrices_of(args.q, args.k, args.v), args.rows, workspace, stream);
}

void project_groups(const ProjectArgs& args, PickGroups pick, const Workspace& workspace,
                    cudaStream_t stream) {
  const ProjectOp op{args.w, words_per_row(args.w.cols), args.x, args.fault, args.layer};
  run(pick, {args.y, args.gain, args.eps, args.w.cols, args.fault, args.layer}, op,
      matrices_of(args.w, args.w, args.w), args.rows, workspace, stream);
}

void ffn_up_groups(const FfnUpArgs& args, PickGroups pick, const Workspace& workspace,
                   cudaStream_t stream) {
  const FfnUpOp op{args.gate, args.up, words_per_row(args.gate.cols), args.act, args.u};
  run(pick, {args.x, args.gain, args.eps, args.gate.cols, args.fault, args.layer}, op,
      matrices_of(args.gate, args.up, args.up), args.rows, workspace, stream);
}

void head_groups(const HeadArgs& args, PickGroups pick, const Workspace& workspace,
                 cudaStream_t stream) {
  const TernaryMatrix& w = args.ternary;
  const LogitsOp op{args.logits, w.rows, args.fault, args.layers + 1};
  run(pick, {args.normed, nullptr, 0.0f, w.cols, args.fault, args.layers}, op, matrices_of(w, w, w),
      args.rows, workspace, stream);
  if (args.argmax == nullptr) return;
  const dim3 grid(static_cast<unsigned>(std::min(64, divide_up(w.rows, kThreads))),
                  static_cast<unsigned>(args.rows));
  launch(arg_max_kernel, grid, dim3(kThreads), 0, stream, args, workspace);
}

}  // namespace edgellm::cuda
