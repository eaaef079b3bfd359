// The four ternary products for two to eight activation rows on devices with clusters
// (gemm_skinny.cu).
#pragma once

#include "kernels/cuda/linear_ops.cuh"
#include "kernels/cuda/quantise.cuh"

namespace edgellm::cuda {

// False where this device or these sizes are not for it: nothing was launched then. `in.x` is the
// first of `rows` rows, one after the other.
bool skinny_gemm(const Input& in, const QkvOp& op, int rows, cudaStream_t stream);
bool skinny_gemm(const Input& in, const ProjectOp& op, int rows, cudaStream_t stream);
bool skinny_gemm(const Input& in, const FfnUpOp& op, int rows, cudaStream_t stream);

}  // namespace edgellm::cuda
