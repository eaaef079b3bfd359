// What failed CUDA calls become. Needs no GPU.
#include <catch2/catch.hpp>

#include "kernels/cuda/check.h"

namespace edgellm::cuda {
namespace {

void check_error(cudaError_t status, ExitCode code, const std::string& part) {
  const Error error = cuda_error(status, "a call", {12020, 13000});
  const std::string message = error.what();
  INFO(message);
  CHECK(error.code() == code);
  CHECK(message.find(part) != std::string::npos);
  CHECK(message.find("--device cpu") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
}

TEST_CASE("a GPU that cannot be used is exit 5") {
  check_error(cudaErrorInsufficientDriver, ExitCode::kDevice,
              "the NVIDIA driver is made for CUDA 12.2 and this edgellm for CUDA 13.0");
  check_error(cudaErrorNoDevice, ExitCode::kDevice, "CUDA_VISIBLE_DEVICES");
  check_error(cudaErrorDevicesUnavailable, ExitCode::kDevice, "busy");
  check_error(cudaErrorNoKernelImageForDevice, ExitCode::kDevice, "CMAKE_CUDA_ARCHITECTURES");
  check_error(cudaErrorUnsupportedPtxVersion, ExitCode::kDevice, "CMAKE_CUDA_ARCHITECTURES");
  check_error(cudaErrorMemoryAllocation, ExitCode::kDevice, "smaller context (-c)");
  check_error(cudaErrorSystemDriverMismatch, ExitCode::kDevice, "driver does not work");
}

TEST_CASE("what breaks in mid-run is exit 1, and names the call") {
  for (cudaError_t status : {cudaErrorIllegalAddress, cudaErrorLaunchFailure,
                             cudaErrorLaunchTimeout, cudaErrorIllegalInstruction}) {
    check_error(status, ExitCode::kRuntime, "has crashed (a call: ");
  }
  for (cudaError_t status : {cudaErrorECCUncorrectable, cudaErrorContextIsDestroyed}) {
    check_error(status, ExitCode::kRuntime, "was lost in mid-run (a call: ");
  }
  check_error(cudaErrorInvalidValue, ExitCode::kRuntime, "the GPU failed (a call: ");
}

TEST_CASE("a call that went well throws nothing, another does") {
  CHECK_NOTHROW(cuda_check(cudaSuccess, "a call"));
  CHECK_THROWS_AS(cuda_check(cudaErrorInvalidValue, "a call"), Error);
}

}  // namespace
}  // namespace edgellm::cuda
