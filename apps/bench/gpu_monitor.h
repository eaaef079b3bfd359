// Watches a GPU while it works: a thread reads its sensors again and again, and its energy counter
// is read before and after.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "apps/common/measured.h"
#include "apps/nvml/nvml.h"

namespace edgellm::bench {

struct GpuSample {
  int64_t at_ns = 0;  // since the recording began
  Measured<double> power_w;
  Measured<unsigned> sm_clock_mhz;
  Measured<unsigned> memory_clock_mhz;
  Measured<unsigned> temperature_c;
  Measured<uint64_t> throttle_reasons;
  Measured<uint64_t> memory_used_bytes;
  Measured<uint64_t> process_memory_bytes;
  Measured<double> pcie_sent_bytes_per_s;
  Measured<double> pcie_received_bytes_per_s;
};

// What was seen while `tokens` tokens were made.
struct GpuObservation {
  int64_t duration_ns = 0;
  int64_t tokens = 0;
  Measured<double> energy_j;  // by the GPU's own counter
  bool power_is_instant = false;
  std::vector<GpuSample> samples;  // at least one
};

// Reads from construction to finish(); `device` must outlive it.
class GpuRecording {
 public:
  explicit GpuRecording(const NvmlDevice& device);
  ~GpuRecording();
  GpuRecording(const GpuRecording&) = delete;
  GpuRecording& operator=(const GpuRecording&) = delete;

  int64_t elapsed_ns() const;
  GpuObservation finish(int64_t tokens);

 private:
  void watch();
  void stop();

  const NvmlDevice& device_;
  int64_t start_ns_;
  Measured<double> energy_before_;
  std::vector<GpuSample> samples_;  // the thread's own until it has ended
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

// The fields of a test's `gpu` object in docs/bench.md. Where nothing could be watched, all are
// null with the reason.
nlohmann::ordered_json to_json(const Measured<GpuObservation>& observation);

}  // namespace edgellm::bench
