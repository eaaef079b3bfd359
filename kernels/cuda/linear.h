// The ternary products by the kernels for several activation rows, for any number of rows: what
// tests compare with one row at a time. `qkv` and its siblings (cuda.h) choose by the number of
// rows.
#pragma once

#include <functional>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan/linear.h"

namespace edgellm::cuda {

void qkv_rows(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream);
void project_rows(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream);
void ffn_up_rows(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream);

// By the kernel that `pick` chooses.
using PickLinear = std::function<LinearPlan(const LinearSize&, const DeviceTraits&)>;
void qkv_by(const PickLinear& pick, const QkvArgs& args, const Workspace& workspace,
            cudaStream_t stream);
void project_by(const PickLinear& pick, const ProjectArgs& args, const Workspace& workspace,
                cudaStream_t stream);
void ffn_up_by(const PickLinear& pick, const FfnUpArgs& args, const Workspace& workspace,
               cudaStream_t stream);

}  // namespace edgellm::cuda
