#include "kernels/cuda/check.h"

namespace edgellm::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

CudaVersions cuda_versions() {
  CudaVersions versions;
  // Both leave 0 where they fail, which is what 0 stands for.
  if (cudaDriverGetVersion(&versions.driver) != cudaSuccess) versions.driver = 0;
  if (cudaRuntimeGetVersion(&versions.runtime) != cudaSuccess) versions.runtime = 0;
  return versions;
}

std::string driver_too_old(const CudaVersions& versions) {
  return "the NVIDIA driver is made for CUDA " + version_text(versions.driver) +
         " and this edgellm for CUDA " + version_text(versions.runtime) +
         ": install a newer driver, or build edgellm with an older CUDA toolkit";
}

Error cuda_error(cudaError_t status, const std::string& what, const CudaVersions& versions) {
  const std::string reason =
      what + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")";
  switch (status) {
    case cudaErrorInsufficientDriver:
      return {ExitCode::kDevice, driver_too_old(versions) + "; or use --device cpu"};
    case cudaErrorNoDevice:
      return {ExitCode::kDevice,
              "no NVIDIA GPU is visible to this program; see nvidia-smi and CUDA_VISIBLE_DEVICES, "
              "or use --device cpu"};
    case cudaErrorInvalidDevice:
      return {ExitCode::kDevice,
              "there is no such GPU (" + reason + "); edgellm devices lists those there are"};
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceAlreadyInUse:
      return {ExitCode::kDevice, "the GPU is busy or not free for use (" + reason +
                                     "); nvidia-smi shows who holds it, or use --device cpu"};
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      return {ExitCode::kDevice,
              "this edgellm was built without code for the GPU (" + reason +
                  "); build it with -DCMAKE_CUDA_ARCHITECTURES=native, or use --device cpu"};
    case cudaErrorMemoryAllocation:
      return {ExitCode::kDevice,
              "out of memory (" + reason +
                  "): another program may have taken what was free; see nvidia-smi, try a smaller "
                  "context (-c), or use --device cpu"};
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorStubLibrary:
      return {ExitCode::kDevice, "the NVIDIA driver does not work (" + reason +
                                     "); see nvidia-smi, or use --device cpu"};
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
      return {ExitCode::kRuntime,
              "a computation on the GPU has crashed (" + reason +
                  "); please report this with the command; --device cpu gives the same tokens"};
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorContextIsDestroyed:
    case cudaErrorUnknown:
      return {ExitCode::kRuntime,
              "the GPU was lost in mid-run (" + reason +
                  "); see nvidia-smi and the system's log, then run again, or use --device cpu"};
    default:
      return {ExitCode::kRuntime,
              "the GPU failed (" + reason + "); run again, or use --device cpu"};
  }
}

}  // namespace edgellm::cuda
