// Attention for passes of many rows (attention_prefill.cu). attention_decode.cu, which splits the
// context of a few rows over the GPU, hands those passes over.
#pragma once

#include "kernels/cuda/cuda.h"

namespace edgellm::cuda {

void attention_rows(const AttentionArgs& args, cudaStream_t stream);

}  // namespace edgellm::cuda
