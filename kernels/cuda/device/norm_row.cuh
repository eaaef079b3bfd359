// RMSNorm of a row by a block of kThreads threads.
#pragma once

#include "kernels/cuda/device/reduce.cuh"

namespace edgellm::cuda {

// `normed` may be `x`.
__device__ __forceinline__ void norm_row(const float* x, const float* gain, float eps, int dim,
                                         float* normed) {
  __shared__ float partials[kPartials];
  const int t = static_cast<int>(threadIdx.x);
  float partial = 0.0f;
  for (int i = t; i < dim; i += kThreads) partial = fmaf(x[i], x[i], partial);
  partials[t] = partial;
  __syncthreads();
  const float r = rms_factor(fold_partials(partials), dim, eps);
  for (int i = t; i < dim; i += kThreads) normed[i] = gain[i] * (x[i] * r);
}

}  // namespace edgellm::cuda
