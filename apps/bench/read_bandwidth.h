// How fast this machine reads its memory when nothing else is asked of it: the ceiling that decode
// is compared with, measured in the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>

namespace edgellm::bench {

struct ReadBandwidth {
  double gb_s = 0;         // of the fastest pass: the least disturbed one
  double median_gb_s = 0;  // of all passes
  int passes = 0;
  uint64_t buffer_bytes = 0;  // read in each pass
  int threads = 0;            // 0: a GPU
};

// A buffer several times as large as the largest cache, read by so many threads from front to back
// for about a second. `poll` is called between passes and may throw to end it. Throws Error
// (kRuntime) where there is no memory for the buffer.
ReadBandwidth cpu_read_bandwidth(int threads, const std::function<void()>& poll);

// A kernel that only reads 2 GiB, or half of the GPU's free memory. Throws Error (kDevice) where
// the GPU cannot be used, in a build without CUDA always.
ReadBandwidth gpu_read_bandwidth(int gpu, const std::function<void()>& poll);

nlohmann::ordered_json to_json(const ReadBandwidth& bandwidth);

}  // namespace edgellm::bench
