// Which GPUs this machine has. Works in every build: without CUDA support, a driver or a GPU the
// list is empty and `problem` says why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace edgellm {

struct GpuInfo {
  int index = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  uint64_t total_bytes = 0;
  int multiprocessors = 0;
  uint64_t l2_bytes = 0;
  std::string pci_bus_id;  // "00000000:1B:00.0", by which NVML knows it
};

struct GpuList {
  bool has_driver = false;  // false: no GPU is expected to be used here
  std::vector<GpuInfo> gpus;
  std::string problem;  // empty when the list could be read and holds a GPU
};

GpuList list_gpus();

// Makes a CUDA context on a listed GPU, which takes a moment, if there is none. A failure shows
// when the GPU is used.
void make_gpu_context(int index);

// Free memory of a listed GPU. Makes a context on it.
uint64_t gpu_free_bytes(int index);

// The oldest GPU that the kernels run on: compute capability 7.5 (T4).
inline bool is_supported(const GpuInfo& gpu) {
  return gpu.compute_major * 10 + gpu.compute_minor >= 75;
}

}  // namespace edgellm
