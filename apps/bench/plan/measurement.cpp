#include "apps/bench/plan/measurement.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "apps/bench/gpu_monitor.h"
#include "apps/bench/model_test.h"
#include "apps/common/statistics.h"
#include "base/clock.h"
#include "engine/block_pool.h"
#include "engine/scheduler.h"

namespace edgellm::bench {
namespace {

// Prompts are measured for this long: the energy counter advances in steps of about 100 ms.
constexpr int64_t kPromptsNs = 2'000'000'000;

// Decode steps of a run. The depth hardly changes meanwhile.
constexpr int kSteps = 32;
constexpr int kGpuRepeats = 3;

// A prompt that begins like no other: none is found in the prefix cache.
std::vector<int32_t> distinct_prompt(int64_t number, int length, int vocab) {
  std::vector<int32_t> ids;
  for (int position = 0; position < length; ++position) {
    const uint64_t mixed = (static_cast<uint64_t>(number) * 1'000'003 + 17) * 0x9E3779B97F4A7C15U +
                           static_cast<uint64_t>(position) * 2654435761U;
    ids.push_back(static_cast<int32_t>((mixed >> 24) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

class PromptLoad {
 public:
  PromptLoad(Backend& backend, int prompt, int sequences)
      : vocab_(backend.model().config().vocab),
        prompt_(prompt),
        sequences_(sequences),
        scheduler_(backend, {}) {}

  // Runs passes of prompts; the answers have one id, which is the prefill's.
  void run_pass() {
    while (scheduler_.waiting() < static_cast<size_t>(sequences_)) {
      SequenceRequest request;
      request.prompt_ids = distinct_prompt(n_submitted_++, prompt_, vocab_);
      request.max_tokens = 1;
      request.ignore_stop_ids = true;
      scheduler_.submit(std::move(request));
    }
    scheduler_.step();
  }

  int64_t computed() const { return scheduler_.counters().prompt_ids; }

 private:
  const int vocab_;
  const int prompt_;
  const int sequences_;
  Scheduler scheduler_;
  int64_t n_submitted_ = 0;
};

void measure_prompts(Backend& backend, const Workload& work, PlanMeasurement& found,
                     const Measured<std::shared_ptr<NvmlDevice>>& sensors,
                     const std::function<void()>& poll) {
  PromptLoad load(backend, work.prompt, found.speed.sequences);
  load.run_pass();  // a warm-up
  poll();
  const int64_t before = load.computed();
  std::optional<GpuRecording> recording;
  if (sensors) recording.emplace(**sensors);
  const int64_t start = now_ns();
  do {
    load.run_pass();
    poll();
  } while (now_ns() - start < kPromptsNs || load.computed() == before);
  const double seconds = static_cast<double>(now_ns() - start) / 1e9;
  const int64_t ids = load.computed() - before;
  found.speed.prefill_ids_s = static_cast<double>(ids) / seconds;
  found.prefill_j = recording ? recording->finish(ids).energy_j.map(
                                    [&](double j) { return j / static_cast<double>(ids); })
                              : Measured<double>(sensors.missing());
}

void measure_answers(Backend& backend, const Workload& work, PlanMeasurement& found,
                     const SamplingOptions& sampling,
                     const Measured<std::shared_ptr<NvmlDevice>>& sensors,
                     const std::function<void()>& poll) {
  TestRunner runner({&backend}, sensors, poll, found.speed.sequences);
  runner.sample(sampling);
  TestSpec spec;
  spec.tokens = std::min(work.answer, kSteps);
  spec.depth = work.prompt + (work.answer - spec.tokens) / 2;
  spec.batch = found.speed.sequences;
  const TestResult result = runner.run(spec, sensors ? kGpuRepeats : 1, poll);
  std::vector<double> runs_s;
  for (const int64_t ns : result.samples_ns) runs_s.push_back(static_cast<double>(ns) / 1e9);
  found.speed.step_s = summarise(runs_s).median / spec.tokens;
  found.decode_j = result.gpu ? result.gpu->energy_j.map([&](double j) {
    return j / static_cast<double>(result.gpu->tokens);
  })
                              : Measured<double>(result.gpu.missing());
}

}  // namespace

int fitting_sequences(const Backend& backend, const Workload& work) {
  const int blocks = BlockPool::blocks_for(int64_t{work.prompt} + work.answer);
  const int fitting = std::min(backend.info().sequences, backend.info().kv_blocks / blocks);
  return static_cast<int>(std::min<int64_t>(fitting, work.requests));
}

PlanMeasurement measure_plan(Backend& backend, const Workload& work, int sequences,
                             const SamplingOptions& sampling,
                             const Measured<std::shared_ptr<NvmlDevice>>& sensors,
                             const std::function<void()>& poll) {
  PlanMeasurement found;
  found.speed.sequences = sequences;
  measure_prompts(backend, work, found, sensors, poll);
  measure_answers(backend, work, found, sampling, sensors, poll);
  return found;
}

}  // namespace edgellm::bench
