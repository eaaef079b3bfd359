// Checking CUDA calls.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/error.h"

namespace edgellm::cuda {

// Throws Error (kDevice) that names the call and CUDA's reason.
inline void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(ExitCode::kDevice,
              std::string("the GPU failed: ") + what + ": " + cudaGetErrorString(status));
}

}  // namespace edgellm::cuda
