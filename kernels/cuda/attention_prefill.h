// Attention for many rows.
#pragma once

#include "kernels/cuda/cuda.h"

namespace edgellm::cuda {

// As attention() (kernels/ops.h), for any number of rows.
void attention_rows(const AttentionArgs& args, cudaStream_t stream);

}  // namespace edgellm::cuda
