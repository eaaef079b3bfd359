// The GPU list of a build without CUDA.
#include "kernels/cuda/gpu_list.h"

namespace edgellm {

GpuList list_gpus() {
  GpuList list;
  list.problem = "this edgellm was built without GPU support (CUDA's nvcc, 12 or newer, adds it)";
  return list;
}

void make_gpu_context(int) {}

uint64_t gpu_free_bytes(int) { return 0; }

}  // namespace edgellm
