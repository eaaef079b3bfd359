// Attention of all rows by one of the kernels for many rows: what tests compare with `attention`
// (cuda.h), which chooses by the pass.
#pragma once

#include "kernels/cuda/cuda.h"

namespace edgellm::cuda {

// Rows that are each alone in their sequence (attention_batch.cu).
void attention_batch(const AttentionArgs& args, cudaStream_t stream);
// Any rows (attention_prefill.cu).
void attention_prefill(const AttentionArgs& args, cudaStream_t stream);

}  // namespace edgellm::cuda
