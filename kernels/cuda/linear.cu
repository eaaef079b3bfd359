// qkv, attn_out, ffn_up and ffn_down: the dispatcher of the ternary products.
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

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// `pick`: a PickLinear.
template <class Args, class Pick>
void run(const Args& args, const Pick& pick, const Workspace& workspace, cudaStream_t stream) {
  const Input in = input_of(args);
  const auto op = op_of(args);
  const LinearSize size{args.rows, in.cols, op.pairs(), in.gain != nullptr,
                        is_aligned(in.x) && is_aligned(in.gain)};
  const LinearPlan plan = pick(size, current_device());
  std::visit([&](const auto& kernel) { multiply(kernel, in, op, args.rows, workspace, stream); },
             plan);
}

// qkv with the norms of the heads, where the model has them: RoPE comes after those.
template <class Product>
void run_qkv(const QkvArgs& args, const Product& product, cudaStream_t stream) {
  if (args.q_gain == nullptr && args.k_gain == nullptr) return product(args);
  QkvArgs without_rope = args;
  without_rope.rope_cos = nullptr;
  product(without_rope);
  norm_heads(args, stream);
}

}  // namespace

DeviceTraits device_traits() { return current_device(); }

void qkv(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream) {
  run_qkv(
      args,
      [&](const QkvArgs& product) {
        if (args.activations == Activations::kInt16Group) {
          qkv_groups(product, pick_groups, workspace, stream);
        } else {
          run(product, pick_linear, workspace, stream);
        }
      },
      stream);
}

void attn_out(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (args.activations == Activations::kInt16Group) {
    return project_groups(args, pick_groups, workspace, stream);
  }
  run(args, pick_linear, workspace, stream);
}

void ffn_up(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (args.activations == Activations::kInt16Group) {
    return ffn_up_groups(args, pick_groups, workspace, stream);
  }
  run(args, pick_linear, workspace, stream);
}

void ffn_down(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  attn_out(args, workspace, stream);
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
