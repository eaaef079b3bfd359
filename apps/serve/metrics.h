// What a server counts, and how Prometheus reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/dispatcher.h"

namespace edgellm::serve {

// A histogram of seconds with Prometheus' cumulative buckets.
class SecondsHistogram {
 public:
  // Upper bounds in seconds: steps of 1, 2.5 and 5.
  static constexpr std::array<double, 16> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100};

  void add(int64_t ns);
  void add(const SecondsHistogram& other);
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  // Values of at most kBounds[i].
  uint64_t up_to(size_t i) const;

 private:
  std::array<uint64_t, kBounds.size() + 1> cells_{};
  uint64_t count_ = 0;
  double sum_ = 0;
};

// Of the engines of one model together.
struct EngineState {
  size_t waiting = 0;
  size_t running = 0;
  int kv_blocks = 0;
  int kv_blocks_used = 0;
  int kv_blocks_cached = 0;
  MemoryPlan memory;
  SchedulerCounters counters;
  int64_t cancelled = 0;       // answers that ended because nobody wanted them any more
  int64_t refused = 0;         // requests that found the queue full
  int64_t failed_devices = 0;  // taken out
  SecondsHistogram ttft;
  SecondsHistogram inter_token;
  SecondsHistogram duration;          // from submission to the end
  std::vector<EngineStatus> devices;  // each engine by itself

  // Adds what `earlier`, engines of the same model that have ended, have counted.
  void add_counts(const EngineState& earlier);
};

struct ModelMetrics {
  std::string name;
  EngineState state;
};

struct ServerMetrics {
  int connections = 0;
  std::optional<double> gpu_joules = {};  // since the server began
  std::vector<ModelMetrics> models = {};
};

// The text of /metrics, in Prometheus' format 0.0.4.
std::string metrics_text(const ServerMetrics& metrics);

}  // namespace edgellm::serve
