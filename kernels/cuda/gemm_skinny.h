// The four ternary products for two to eight activation rows on devices with clusters
// (few_rows.cu).
#pragma once

#include "kernels/cuda/linear_ops.cuh"
#include "kernels/cuda/quantise.cuh"

namespace edgellm::cuda {

// False where this device or these sizes are not for it: nothing was launched then. `in.x` is the
// first of `rows` rows, one after the other.
bool multiply_few_rows(const Input& in, const QkvOp& op, int rows, cudaStream_t stream);
bool multiply_few_rows(const Input& in, const ProjectOp& op, int rows, cudaStream_t stream);
bool multiply_few_rows(const Input& in, const FfnUpOp& op, int rows, cudaStream_t stream);

}  // namespace edgellm::cuda
