// Checking CUDA calls.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/error.h"

namespace edgellm::cuda {

// Versions as CUDA counts them: 12030 is 12.3.
struct CudaVersions {
  int driver = 0;   // the newest CUDA that the installed driver knows; 0: there is no driver
  int runtime = 0;  // what this program was built with
};

CudaVersions cuda_versions();

// Why a driver of the first version cannot run a program of the second, and what to do.
std::string driver_too_old(const CudaVersions& versions);

// The failure of the call `what` as an error with what to do about it. kDevice where the GPU cannot
// be used as the machine is or has no memory left, kRuntime where something broke in mid-run.
Error cuda_error(cudaError_t status, const std::string& what, const CudaVersions& versions);

inline void cuda_check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw cuda_error(status, what, cuda_versions());
}

}  // namespace edgellm::cuda
