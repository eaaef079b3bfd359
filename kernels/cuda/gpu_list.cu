#include <cuda_runtime.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/gpu_list.h"

namespace edgellm {

GpuList list_gpus() {
  GpuList list;
  int count = 0;
  // The runtime is linked statically and loads the driver itself: without one this call fails and
  // nothing else does.
  const cudaError_t status = cudaGetDeviceCount(&count);
  const cuda::CudaVersions versions = cuda::cuda_versions();
  if (versions.driver == 0) {
    list.problem = "no NVIDIA driver is installed";
    return list;
  }
  list.has_driver = true;
  if (status == cudaErrorInsufficientDriver) {
    list.problem = cuda::driver_too_old(versions);
    return list;
  }
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
    gpu.total_bytes = properties.totalGlobalMem;
    gpu.l2_bytes = static_cast<uint64_t>(properties.l2CacheSize);
    char bus_id[32] = "";
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, i) == cudaSuccess) gpu.pci_bus_id = bus_id;
    list.gpus.push_back(gpu);
  }
  if (list.gpus.empty()) list.problem = "no usable GPU: the driver lists none";
  return list;
}

void make_gpu_context(int index) {
  if (cudaSetDevice(index) == cudaSuccess) cudaFree(nullptr);
}

uint64_t gpu_free_bytes(int index) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (cudaSetDevice(index) != cudaSuccess) return 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return 0;
  return free_bytes;
}

}  // namespace edgellm
