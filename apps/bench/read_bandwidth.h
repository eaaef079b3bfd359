// How fast loops that only read get through memory: the ceiling that decode is compared with. It is
// measured in the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>

namespace edgellm::bench {

struct ReadBandwidth {
  double gb_s = 0;         // of the fastest pass, the least disturbed one
  double median_gb_s = 0;  // of all passes
  int passes = 0;
  uint64_t buffer_bytes = 0;  // read in each pass
  int threads = 0;            // 0: a GPU
};

// `threads` threads read a buffer from front to back for about a second. The buffer is several
// times as large as the largest cache. `poll` is called between passes and may throw to end the
// work. Throws Error (kRuntime) where there is no memory for the buffer.
ReadBandwidth cpu_read_bandwidth(int threads, const std::function<void()>& poll);

// A kernel reads 2 GiB, or half of the GPU's free memory where that is less. Throws Error (kDevice)
// where the GPU cannot be used, and always in a build without CUDA.
ReadBandwidth gpu_read_bandwidth(int gpu, const std::function<void()>& poll);

nlohmann::ordered_json to_json(const ReadBandwidth& bandwidth);

}  // namespace edgellm::bench
