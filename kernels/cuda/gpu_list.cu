#include <cuda_runtime.h>

#include "kernels/cuda/gpu_list.h"

namespace edgellm {

GpuList list_gpus() {
  GpuList list;
  int count = 0;
  // The runtime is linked statically and loads the driver itself: without one this call fails and
  // nothing else does.
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    list.problem = std::string("no usable GPU: ") + cudaGetErrorString(status);
    return list;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    GpuInfo gpu;
    gpu.index = i;
    gpu.name = properties.name;
    gpu.compute_major = properties.major;
    gpu.compute_minor = properties.minor;
    gpu.multiprocessors = properties.multiProcessorCount;
    size_t free_bytes = 0;
    size_t total_bytes = properties.totalGlobalMem;
    if (cudaSetDevice(i) == cudaSuccess) cudaMemGetInfo(&free_bytes, &total_bytes);
    gpu.free_bytes = free_bytes;
    gpu.total_bytes = total_bytes;
    list.gpus.push_back(gpu);
  }
  if (list.gpus.empty()) list.problem = "no usable GPU: the driver lists none";
  return list;
}

}  // namespace edgellm
