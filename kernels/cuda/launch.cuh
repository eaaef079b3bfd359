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

// Streaming multiprocessors of the current device.
inline int multiprocessors() {
  static const int count = [] {
    int device = 0;
    int value = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
    return value;
  }();
  return count;
}

// Whether kernels may start before the one before them has ended (common.cuh).
inline bool has_dependent_launch() {
  static const bool has = [] {
    int device = 0;
    int major = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "cudaDeviceGetAttribute");
    return major >= 9;
  }();
  return has;
}

template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, const Args&... args) {
  if (shared_bytes > 32 * 1024) {
    cuda_check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "cudaFuncSetAttribute");
  }
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = has_dependent_launch() ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, Params(args)...), "a kernel launch");
}

}  // namespace edgellm::cuda
