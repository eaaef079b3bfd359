// Tests tagged [gpu] begin with: if (no_gpu()) return;
#pragma once

#include "kernels/cuda/gpu_list.h"
#include "tests/support/skip.h"

namespace edgellm::test {

// Whether there is no GPU that edgellm could use; then it counts the test as skipped.
inline bool no_gpu() {
  const GpuList list = list_gpus();
  if (!list.problem.empty()) skip(list.problem);
  return !list.problem.empty();
}

}  // namespace edgellm::test
