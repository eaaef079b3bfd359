// Sorting a key a thread over a block of kChooseThreads.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/plan/choose.h"

namespace edgellm::cuda {

// Thread i returns the key number i in falling order. Bitonic: runs of `size` sorted neighbours are
// merged in pairs; keys of other warps come through `memory` [kChooseThreads].
template <class Key>
__device__ Key sort_block(Key key, Key* memory) {
  const int t = static_cast<int>(threadIdx.x);
  const auto keep = [&](Key other, int size, int width) {
    // The lower half of a falling run, or the upper one of a rising run, takes the larger key.
    const bool takes_larger = ((t & size) == 0) == ((t & width) == 0);
    key = takes_larger == (other > key) ? other : key;
  };
#pragma unroll 1
  for (int size = 2; size <= kChooseThreads; size *= 2) {
#pragma unroll 1
    for (int width = size / 2; width >= 32; width /= 2) {
      __syncthreads();
      memory[t] = key;
      __syncthreads();
      keep(memory[t ^ width], size, width);
    }
#pragma unroll
    for (int width = 16; width >= 1; width /= 2) {
      if (width < size) keep(__shfl_xor_sync(kAllLanes, key, width), size, width);
    }
  }
  return key;
}

}  // namespace edgellm::cuda
