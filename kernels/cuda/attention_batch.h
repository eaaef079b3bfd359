// Attention for passes of many sequences, a row of each (attention_batch.cu). attention_decode.cu,
// which splits the context of a few rows over the GPU, hands those rows over.
#pragma once

#include "kernels/cuda/cuda.h"

namespace edgellm::cuda {

void attention_batch(const AttentionArgs& args, cudaStream_t stream);

}  // namespace edgellm::cuda
