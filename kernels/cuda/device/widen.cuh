// 16-bit values of matrices as float32.
#pragma once

#include <cuda_fp16.h>

#include "kernels/ops.h"

namespace edgellm::cuda {

// Two neighbouring values, the lower one first.
template <DenseType kType>
__device__ __forceinline__ float2 widen_pair(uint32_t pair) {
  if constexpr (kType == DenseType::kBF16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
}

}  // namespace edgellm::cuda
