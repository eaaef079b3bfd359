// A build without CUDA refuses a GPU.
#include "apps/bench/ops/op_timing.h"
#include "apps/bench/read_bandwidth.h"
#include "base/error.h"
#include "kernels/cuda/gpu_list.h"

namespace edgellm::bench {

ReadBandwidth gpu_read_bandwidth(int, const std::function<void()>&) {
  throw Error(ExitCode::kDevice, list_gpus().problem + "; use --device cpu");
}

void time_gpu_ops(const ModelConfig&, const OpOptions&, int, uint64_t, const OpSink&) {
  throw Error(ExitCode::kDevice, list_gpus().problem + "; use --device cpu");
}

}  // namespace edgellm::bench
