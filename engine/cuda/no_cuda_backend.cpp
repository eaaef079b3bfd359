// The GPU engine of a build without CUDA.
#include "base/error.h"
#include "engine/backend.h"
#include "kernels/cuda/gpu_list.h"

namespace edgellm {

std::unique_ptr<Backend> make_cuda_backend(const ModelFile&, const EngineOptions&,
                                           const Progress&) {
  throw Error(ExitCode::kDevice, list_gpus().problem + "; use --device cpu");
}

MemoryPlan plan_cuda_memory(const ModelFile&, const EngineOptions&) { return {}; }

}  // namespace edgellm
