// The kernels behind the ternary products, launched by plan (plan/linear.h). Each is instantiated
// for the three ops of linear_ops.cuh in the file that its comment names.
#pragma once

#include "kernels/cuda/device/quantise.cuh"
#include "kernels/cuda/linear_ops.cuh"

namespace edgellm::cuda {

// `in` is the first of `rows` rows of activations. gemv.cu:
template <class Op>
void multiply(const ShortGemvPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream);
template <class Op>
void multiply(const LongGemvPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream);
// gemm_skinny.cu:
template <class Op>
void multiply(const SkinnyPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream);
// gemm.cu:
template <class Op>
void multiply(const GemmPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream);

}  // namespace edgellm::cuda
