// The ternary products of rows in groups (Activations::kInt16Group), for the ops of linear_ops.cuh
// and for a ternary head.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan/groups.h"

namespace edgellm::cuda {

// By the plan that `pick` chooses.
using PickGroups = GroupPlan (*)(const LinearSize&, const DeviceTraits&);
void qkv_groups(const QkvArgs& args, PickGroups pick, const Workspace& workspace,
                cudaStream_t stream);
void project_groups(const ProjectArgs& args, PickGroups pick, const Workspace& workspace,
                    cudaStream_t stream);
void ffn_up_groups(const FfnUpArgs& args, PickGroups pick, const Workspace& workspace,
                   cudaStream_t stream);
// The logits of a ternary head, of args.normed, and their arg-max where it is wanted.
void head_groups(const HeadArgs& args, PickGroups pick, const Workspace& workspace,
                 cudaStream_t stream);

// The norms of the heads of q and k, and RoPE, in place on what a product without RoPE has left.
void norm_heads(const QkvArgs& args, cudaStream_t stream);

}  // namespace edgellm::cuda
