// Launching kernels.
#pragma once

#include "kernels/cuda/check.h"

namespace edgellm::cuda {

template <int N>
struct Constant {
  static constexpr int value = N;
};

// Dynamic shared memory a block may have on the current device, what the kernels declare
// statically left out.
inline size_t max_dynamic_shared() {
  static const size_t bytes = [] {
    int device = 0;
    int limit = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cudaDeviceGetAttribute");
    return static_cast<size_t>(limit) - 8192;
  }();
  return bytes;
}

template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, const Args&... args) {
  if (shared_bytes > 40 * 1024) {
    cuda_check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "cudaFuncSetAttribute");
  }
  kernel<<<grid, block, shared_bytes, stream>>>(args...);
  cuda_check(cudaGetLastError(), "a kernel launch");
}

}  // namespace edgellm::cuda
