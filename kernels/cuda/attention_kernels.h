// The kernels behind attention, launched by plan (plan/attention.h).
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan/attention.h"

namespace edgellm::cuda {

// attention_decode.cu:
void launch_attention(const DecodePlan& plan, const AttentionArgs& args, const Workspace& workspace,
                      cudaStream_t stream);
// attention_batch.cu:
void launch_attention(const BatchPlan& plan, const AttentionArgs& args, cudaStream_t stream);
// attention_prefill.cu:
void launch_attention(const PrefillPlan& plan, const AttentionArgs& args, cudaStream_t stream);

}  // namespace edgellm::cuda
