// qkv, attn_out, ffn_up and ffn_down: the dispatcher of the ternary products.
#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/groups.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_kernels.cuh"

namespace edgellm::cuda {
namespace {

Input input_of(const QkvArgs& args) {
  return {args.x, args.gain, args.eps, args.dim, args.fault, args.layer};
}
Input input_of(const ProjectArgs& args) {
  return {args.y, args.gain, args.eps, args.w.cols, args.fault, args.layer};
}
Input input_of(const FfnUpArgs& args) {
  return {args.x, args.gain, args.eps, args.gate.cols, args.fault, args.layer};
}

QkvOp op_of(const QkvArgs& args) {
  return {args.q,        args.k,        args.v,         words_per_row(args.dim),
          args.rope_cos, args.rope_sin, args.positions, args.q_out,
          args.k_out,    args.v_out,    args.head_dim};
}
ProjectOp op_of(const ProjectArgs& args) {
  return {args.w, words_per_row(args.w.cols), args.x, args.fault, args.layer};
}
FfnUpOp op_of(const FfnUpArgs& args) {
  return {args.gate, args.up, words_per_row(args.gate.cols), args.act, args.u};
}

// `pick`: a PickLinear. `before_ffn_up`: LinearSize.
template <class Args, class Pick>
void run(const Args& args, const Pick& pick, const Workspace& workspace, cudaStream_t stream,
         bool before_ffn_up = false) {
  const Input in = input_of(args);
  const auto op = op_of(args);
  const LinearSize size{args.rows,
                        in.cols,
                        op.pairs(),
                        in.gain != nullptr,
                        is_aligned(in.x) && is_aligned(in.gain),
                        before_ffn_up};
  const LinearPlan plan = pick(size, current_device());
  std::visit([&](const auto& kernel) { multiply(kernel, in, op, args.rows, workspace, stream); },
             plan);
}

// q, k and v by the kernels for their activations.
void multiply_qkv(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (args.activations == Activations::kInt16Group) {
    qkv_groups(args, pick_groups, workspace, stream);
  } else {
    run(args, pick_linear, workspace, stream);
  }
}

// One matrix of qkv with a gain of its own, written as q.
void multiply_alone(QkvArgs args, const TernaryMatrix& w, const float* gain, float* out,
                    const Workspace& workspace, cudaStream_t stream) {
  args.gain = gain;
  args.q = w;
  args.q_out = out;
  args.k = args.v = TernaryMatrix{};
  multiply_qkv(args, workspace, stream);
}

void project(const ProjectArgs& args, bool before_ffn_up, const Workspace& workspace,
             cudaStream_t stream) {
  if (args.activations == Activations::kInt16Group) {
    return project_groups(args, pick_groups, workspace, stream);
  }
  run(args, pick_linear, workspace, stream, before_ffn_up);
}

// u = act(gate) * up, of gate in u.
__global__ void __launch_bounds__(kThreads)
    gate_kernel(GateActivation act, const float* up, float* u, size_t count) {
  let_next_start();
  wait_for_previous();
  const size_t stride = static_cast<size_t>(gridDim.x) * kThreads;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    u[i] = gated(act, u[i], up[i]);
  }
}

// Gate and up, coded each by itself.
void ffn_up_apart(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream) {
  require(args.gate.rows % 2 == 0, "gate and up are multiplied apart in pairs of their rows");
  QkvArgs product;
  product.x = args.x;
  product.eps = args.eps;
  product.rows = args.rows;
  product.dim = args.gate.cols;
  product.head_dim = 2;  // pairs of neighbours
  product.layer = args.layer;
  product.fault = args.fault;
  product.activations = args.activations;
  multiply_alone(product, args.gate, args.gain, args.u, workspace, stream);
  multiply_alone(product, args.up, args.up_gain, workspace.up, workspace, stream);
  const size_t count = static_cast<size_t>(args.rows) * static_cast<size_t>(args.gate.rows);
  const size_t blocks = std::min<size_t>((count + kThreads - 1) / kThreads, 4096);
  launch(gate_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, args.act,
         workspace.up, args.u, count);
}

}  // namespace

DeviceTraits device_traits() { return current_device(); }

void qkv(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream) {
  const bool norms_heads = args.q_gain != nullptr || args.k_gain != nullptr;
  QkvArgs products = args;
  if (norms_heads) products.rope_cos = nullptr;  // RoPE comes after the norms
  if (args.k_input_gain == nullptr && args.v_input_gain == nullptr) {
    multiply_qkv(products, workspace, stream);
  } else {
    const auto own_or = [&](const float* own) { return own != nullptr ? own : args.gain; };
    multiply_alone(products, args.q, args.gain, args.q_out, workspace, stream);
    multiply_alone(products, args.k, own_or(args.k_input_gain), args.k_out, workspace, stream);
    products.rope_cos = nullptr;
    multiply_alone(products, args.v, own_or(args.v_input_gain), args.v_out, workspace, stream);
  }
  if (norms_heads) norm_heads(args, stream);
}

void attn_out(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  project(args, true, workspace, stream);
}

void ffn_up(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (args.up_gain != nullptr) return ffn_up_apart(args, workspace, stream);
  if (args.activations == Activations::kInt16Group) {
    return ffn_up_groups(args, pick_groups, workspace, stream);
  }
  run(args, pick_linear, workspace, stream);
}

void ffn_down(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  project(args, false, workspace, stream);
}

void qkv_rows(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream) {
  run(args, pick_linear_rows, workspace, stream);
}

void project_rows(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  run(args, pick_linear_rows, workspace, stream);
}

void ffn_up_rows(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream) {
  run(args, pick_linear_rows, workspace, stream);
}

void qkv_by(const PickLinear& pick, const QkvArgs& args, const Workspace& workspace,
            cudaStream_t stream) {
  run(args, pick, workspace, stream);
}

void project_by(const PickLinear& pick, const ProjectArgs& args, const Workspace& workspace,
                cudaStream_t stream) {
  run(args, pick, workspace, stream);
}

void ffn_up_by(const PickLinear& pick, const FfnUpArgs& args, const Workspace& workspace,
               cudaStream_t stream) {
  run(args, pick, workspace, stream);
}

}  // namespace edgellm::cuda
