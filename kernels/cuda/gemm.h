// The four ternary products for two and more activation rows (gemm.cu). gemv.cu, which handles one
// row, hands the others over.
#pragma once

#include "kernels/cuda/cuda.h"

namespace edgellm::cuda {

void qkv_rows(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream);
void project_rows(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream);
void ffn_up_rows(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream);

}  // namespace edgellm::cuda
