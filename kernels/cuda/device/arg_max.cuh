// The arg-max over the logits of a head, gathered from many blocks.
#pragma once

#include "kernels/certified_head.h"
#include "kernels/cuda/device/common.cuh"

namespace edgellm::cuda {

// The key of a logit; 0 where the arg-max may not choose it.
__device__ inline uint64_t allowed_key(const HeadArgs& args, int v, float logit) {
  for (int b = 0; b < args.n_banned; ++b) {
    if (args.banned[b] == v) return 0;
  }
  return logit_key(logit, v);
}

// After a block has merged its best keys into `workspace.best`: the last of `items` blocks turns
// the keys of all rows into ids.
__device__ __forceinline__ void end_of_best(const HeadArgs& args, const Workspace& workspace,
                                            int items) {
  __shared__ bool last;
  const int t = static_cast<int>(threadIdx.x);
  // The maxima are in before the block counts itself done.
  __threadfence();
  __syncthreads();
  if (t == 0) last = atomicAdd(workspace.head_done, 1) == items - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int r = t; r < args.rows; r += static_cast<int>(blockDim.x)) {
    args.argmax[r] = id_of_key(atomicExch(workspace.best + r, 0ull));
  }
  if (t == 0) *workspace.head_done = 0;
}

}  // namespace edgellm::cuda
