// The tests of `edgellm bench`. A test is the prefill of a prompt, or decoding from a cache that is
// filled to some depth, and is run several times on a backend.
//
// The times are those that a user waits: for the first token of a prompt, and in decode from the
// call to each token. The timed parts hold nothing else except a poll for Ctrl-C. Sensors are read
// in separate runs (apps/bench/gpu_monitor.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench/gpu_monitor.h"
#include "apps/session/machine.h"
#include "engine/backend.h"
#include "engine/sampling.h"

namespace edgellm::bench {

struct TestSpec {
  enum class Kind { kPrefill, kDecode };
  Kind kind = Kind::kDecode;
  int tokens = 0;  // of the prompt, or decoded for each sequence
  int depth = 0;   // decode: positions in the cache before the first token
  int batch = 1;   // decode: sequences that advance together

  std::string name() const;    // "pp512", "tg128", "tg128 @ d1024", "tg128 @ d1024 x4"
  int positions() const;       // of a sequence after a run
  int64_t run_tokens() const;  // of a run, all sequences together
};

struct TestResult {
  TestSpec spec;
  int devices = 1;                      // each does what the spec says, all at the same time
  std::vector<int64_t> samples_ns;      // of each run
  std::vector<int64_t> ttft_ns;         // from the first id handed in to the first token known
  std::vector<int64_t> inter_token_ns;  // decode: latencies between tokens, run after run
  int64_t cpu_ns = 0;                   // of all threads in all runs
  ProcessUsage usage;                   // after the last run; its peak is that of the test
  HostWork host_work;                   // of all runs
  HeadStats head;                       // of all runs
  StepLaunches launches;
  Measured<GpuObservation> gpu;

  int64_t total_tokens() const {
    return spec.run_tokens() * devices * static_cast<int64_t>(samples_ns.size());
  }
  std::vector<double> tokens_per_second() const;  // of each run
};

class TestRunner {
 public:
  // Each test runs on all backends at the same time; their infos differ only in the device. `poll`
  // is called often, by a thread for each backend, and may throw to end the work. `sensors` are
  // those of the GPU of a single backend. The blocks of a paged cache are divided among the first
  // `sequences` of the backend; 0: all.
  TestRunner(std::vector<Backend*> backends, Measured<std::shared_ptr<NvmlDevice>> sensors,
             std::function<void()> poll, int sequences = 0);

  // The ids of decode tests are chosen so; greedily before the first call.
  void sample(const SamplingOptions& sampling) { sampling_ = sampling; }

  // Makes the engine do what it does only once.
  void warm_up();

  // A warm-up run, then `repeats` timed ones. `on_run` is called after each of those.
  TestResult run(const TestSpec& spec, int repeats, const std::function<void()>& on_run);

 private:
  // A backend, and what a run on it needs and says.
  struct Lane {
    Backend* backend = nullptr;
    std::vector<int32_t> next = {};  // the id that each sequence decodes first
    int64_t began_at = 0;
    int64_t ended_at = 0;
  };

  int32_t id_at(int sequence, int position) const;
  int32_t prefill(Lane& lane, int sequence, int tokens);
  void fill(const TestSpec& spec, std::vector<int64_t>* ttft_ns);
  void fill_lane(Lane& lane, const TestSpec& spec, std::vector<int64_t>* ttft_ns);
  int64_t run_once(const TestSpec& spec, TestResult* result);
  void run_lane(Lane& lane, const TestSpec& spec, TestResult* result);
  void decode(Lane& lane, const TestSpec& spec, TestResult* result);
  void on_each(const std::function<void(size_t lane)>& work);
  HostWork host_work() const;
  HeadStats head_stats() const;
  GpuObservation observe(const TestSpec& spec);

  std::vector<Lane> lanes_;
  const BackendInfo& info_;  // of the first
  Measured<std::shared_ptr<NvmlDevice>> sensors_;
  std::function<void()> poll_;
  SamplingOptions sampling_;
};

}  // namespace edgellm::bench
