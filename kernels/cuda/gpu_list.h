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
  uint64_t free_bytes = 0;
  int multiprocessors = 0;
};

struct GpuList {
  std::vector<GpuInfo> gpus;
  std::string problem;  // empty when the list could be read and holds a GPU
};

GpuList list_gpus();

}  // namespace edgellm
