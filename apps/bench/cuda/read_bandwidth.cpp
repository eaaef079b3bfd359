#include "apps/bench/read_bandwidth.h"

#include <algorithm>
#include <vector>

#include "apps/bench/cuda/graph_time.h"
#include "apps/bench/cuda/read_all.h"
#include "apps/common/statistics.h"

namespace edgellm::bench {
namespace {
constexpr int kPasses = 20;
}

ReadBandwidth gpu_read_bandwidth(int gpu, const std::function<void()>& poll) {
  cuda::cuda_check(cudaSetDevice(gpu), "selecting the GPU");
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cuda::cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "reading the GPU's free memory");
  ReadBandwidth result;
  result.buffer_bytes = std::min<size_t>(free_bytes / 2, size_t{2} << 30) / 256 * 256;
  const Stream stream;
  const DeviceMemory buffer(result.buffer_bytes);
  const DeviceMemory sink(sizeof(uint32_t));
  cuda::cuda_check(cudaMemsetAsync(buffer.data(), 1, result.buffer_bytes, stream),
                   "filling memory");
  const std::vector<double> times = graph_times_us(
      stream, kPasses,
      [&] {
        read_all(reinterpret_cast<const uint4*>(buffer.data()), result.buffer_bytes / sizeof(uint4),
                 reinterpret_cast<uint32_t*>(sink.data()), stream);
      },
      poll);
  const Summary us = summarise(times);
  result.gb_s = static_cast<double>(result.buffer_bytes) / us.min / 1000.0;
  result.median_gb_s = static_cast<double>(result.buffer_bytes) / us.median / 1000.0;
  result.passes = static_cast<int>(us.n);
  return result;
}

}  // namespace edgellm::bench
