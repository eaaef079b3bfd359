// Attention as on a GPU without wgmma (attention_prefill.cu): what tests compare with `attention`
// (cuda.h).
#pragma once

#include "kernels/cuda/cuda.h"

namespace edgellm::cuda {

void attention_without_wgmma(const AttentionArgs& args, const Workspace& workspace,
                             cudaStream_t stream);

}  // namespace edgellm::cuda
