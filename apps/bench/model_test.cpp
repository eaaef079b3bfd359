#include "apps/bench/model_test.h"

#include <algorithm>
#include <latch>
#include <numeric>
#include <utility>

#include "apps/common/threads.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/block_pool.h"
#include "engine/prefill.h"

namespace edgellm::bench {
namespace {

// The CPU builds its copy of the head at the 17th greedy step. A GPU captures its graph at the
// first step.
constexpr int kWarmUpTokens = 32;

// The energy counter advances in steps of about 100 ms: 2 s keep its error at a few per cent.
constexpr int64_t kObservedNs = 2'000'000'000;

HostWork difference(HostWork after, const HostWork& before) {
  after.to_device_bytes -= before.to_device_bytes;
  after.to_host_bytes -= before.to_host_bytes;
  after.synchronisations -= before.synchronisations;
  after.polls -= before.polls;
  return after;
}

}  // namespace

std::string TestSpec::name() const {
  std::string name = (kind == Kind::kPrefill ? "pp" : "tg") + std::to_string(tokens);
  if (depth > 0) name += " @ d" + std::to_string(depth);
  if (batch > 1) name += " x" + std::to_string(batch);
  return name;
}

int TestSpec::positions() const { return depth + tokens; }
int64_t TestSpec::run_tokens() const { return int64_t{tokens} * batch; }

std::vector<double> TestResult::tokens_per_second() const {
  std::vector<double> rates;
  for (const int64_t ns : samples_ns) {
    rates.push_back(1e9 * static_cast<double>(spec.run_tokens() * devices) /
                    static_cast<double>(ns));
  }
  return rates;
}

TestRunner::TestRunner(std::vector<Backend*> backends,
                       Measured<std::shared_ptr<NvmlDevice>> sensors, std::function<void()> poll,
                       int sequences)
    : info_(backends.front()->info()), sensors_(std::move(sensors)), poll_(std::move(poll)) {
  for (Backend* backend : backends) {
    lanes_.push_back({backend});
    if (backend->info().kv_blocks == 0) continue;
    const int sharers = sequences > 0 ? sequences : backend->info().sequences;
    // A sequence holds no more blocks than its context needs.
    const int each = std::min(backend->info().kv_blocks / sharers,
                              BlockPool::blocks_for(backend->info().context));
    std::vector<int32_t> blocks(static_cast<size_t>(each));
    std::iota(blocks.begin(), blocks.end(), 0);
    for (int sequence = 0; sequence < sharers; ++sequence) {
      backend->set_blocks(sequence, blocks);
      for (int32_t& block : blocks) block += static_cast<int32_t>(blocks.size());
    }
  }
}

// Does the work for each lane, at the same time on threads of their own where there are several.
void TestRunner::on_each(const std::function<void(size_t lane)>& work) {
  if (lanes_.size() == 1) return work(0);
  std::latch all_are_there(static_cast<ptrdiff_t>(lanes_.size()));
  on_threads(lanes_.size(), [&](size_t i) {
    all_are_there.arrive_and_wait();
    work(i);
  });
}

HostWork TestRunner::host_work() const {
  HostWork sum;
  for (const Lane& lane : lanes_) {
    const HostWork work = lane.backend->host_work();
    sum.to_device_bytes += work.to_device_bytes;
    sum.to_host_bytes += work.to_host_bytes;
    sum.synchronisations += work.synchronisations;
    sum.polls += work.polls;
  }
  return sum;
}

HeadStats TestRunner::head_stats() const {
  HeadStats sum;
  for (const Lane& lane : lanes_) {
    const HeadStats stats = lane.backend->head_stats();
    sum.steps += stats.steps;
    sum.rescored += stats.rescored;
    sum.most_rescored = std::max(sum.most_rescored, stats.most_rescored);
  }
  return sum;
}

// The ids do not change the work. Any that differ and lie in the vocabulary will do.
int32_t TestRunner::id_at(int sequence, int position) const {
  const auto vocab = static_cast<uint32_t>(lanes_.front().backend->model().config().vocab);
  const uint32_t mixed = (static_cast<uint32_t>(position) + 1) * 2654435761U +
                         static_cast<uint32_t>(sequence) * 40503U;
  return static_cast<int32_t>((mixed >> 8) % vocab);
}

// Returns the id that comes after the prompt.
int32_t TestRunner::prefill(Lane& lane, int sequence, int tokens) {
  std::vector<int32_t> ids;
  for (int position = 0; position < tokens; ++position) ids.push_back(id_at(sequence, position));
  int32_t next = 0;
  Outputs outputs;
  outputs.ids = {&next, 1};
  Prefill prefill(*lane.backend, sequence, /*first=*/0, ids);
  while (!prefill.is_done()) {
    poll_();
    prefill.run_pass_for_last_id(outputs);
  }
  return next;
}

// Fills the caches that a decode test starts from. Decoding writes only beyond its depth, so all
// runs of the test start from the same cache.
void TestRunner::fill(const TestSpec& spec, std::vector<int64_t>* ttft_ns) {
  std::vector<std::vector<int64_t>> times(lanes_.size());
  on_each([&](size_t i) { fill_lane(lanes_[i], spec, &times[i]); });
  for (const auto& of_lane : times) ttft_ns->insert(ttft_ns->end(), of_lane.begin(), of_lane.end());
}

void TestRunner::fill_lane(Lane& lane, const TestSpec& spec, std::vector<int64_t>* ttft_ns) {
  lane.next.resize(static_cast<size_t>(spec.batch));
  for (int sequence = 0; sequence < spec.batch; ++sequence) {
    int32_t& next = lane.next[static_cast<size_t>(sequence)];
    if (spec.depth == 0) {
      next = id_at(sequence, 0);
      continue;
    }
    const int64_t start = now_ns();
    next = prefill(lane, sequence, spec.depth);
    ttft_ns->push_back(now_ns() - start);
  }
}

// Every step has a row for each sequence. The call is the one that `run` and `batch` make.
void TestRunner::decode(Lane& lane, const TestSpec& spec, TestResult* result) {
  const auto rows = static_cast<size_t>(spec.batch);
  const std::vector<int32_t> positions(rows, spec.depth);
  std::vector<int32_t> sequences(rows);
  std::iota(sequences.begin(), sequences.end(), 0);
  for (const int32_t sequence : sequences) {
    lane.backend->set_choice(sequence, {.sampling = sampling_, .banned = {}, .prompt = {}});
  }
  lane.began_at = now_ns();
  int64_t last = lane.began_at;
  int n_steps = 0;
  const auto on_ids = [&](std::span<const int32_t>) {
    const int64_t now = now_ns();
    poll_();
    if (result != nullptr) {
      if (n_steps > 0) result->inter_token_ns.push_back(now - last);
      if (n_steps == 0 && spec.depth == 0) {
        result->ttft_ns.push_back(now - lane.began_at);
      }
    }
    ++n_steps;
    last = now;
    return true;
  };
  lane.backend->decode_rows({lane.next, sequences, positions}, spec.tokens, on_ids);
  require(n_steps == spec.tokens, "a decode test ended early");
  lane.ended_at = last;
}

void TestRunner::run_lane(Lane& lane, const TestSpec& spec, TestResult* result) {
  if (spec.kind == TestSpec::Kind::kDecode) return decode(lane, spec, result);
  lane.began_at = now_ns();
  prefill(lane, /*sequence=*/0, spec.tokens);
  lane.ended_at = now_ns();
  if (result != nullptr) result->ttft_ns.push_back(lane.ended_at - lane.began_at);
}

// From the first backend's beginning to the last one's end.
int64_t TestRunner::run_once(const TestSpec& spec, TestResult* result) {
  std::vector<TestResult> parts(lanes_.size());
  on_each([&](size_t i) { run_lane(lanes_[i], spec, result == nullptr ? nullptr : &parts[i]); });
  int64_t began_at = lanes_.front().began_at;
  int64_t ended_at = lanes_.front().ended_at;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    began_at = std::min(began_at, lanes_[i].began_at);
    ended_at = std::max(ended_at, lanes_[i].ended_at);
    if (result == nullptr) continue;
    const TestResult& part = parts[i];
    result->ttft_ns.insert(result->ttft_ns.end(), part.ttft_ns.begin(), part.ttft_ns.end());
    result->inter_token_ns.insert(result->inter_token_ns.end(), part.inter_token_ns.begin(),
                                  part.inter_token_ns.end());
  }
  return ended_at - began_at;
}

GpuObservation TestRunner::observe(const TestSpec& spec) {
  GpuRecording recording(**sensors_);
  int64_t tokens = 0;
  do {
    run_once(spec, nullptr);
    tokens += spec.run_tokens();
  } while (recording.elapsed_ns() < kObservedNs);
  return recording.finish(tokens);
}

void TestRunner::warm_up() {
  TestSpec spec;
  spec.tokens = std::min(kWarmUpTokens, info_.context);
  std::vector<int64_t> ignored;
  fill(spec, &ignored);
  run_once(spec, nullptr);
}

TestResult TestRunner::run(const TestSpec& spec, int repeats, const std::function<void()>& on_run) {
  require(spec.tokens >= 1 && spec.depth >= 0 && spec.batch >= 1 && repeats >= 1 &&
              spec.positions() <= info_.context,
          "a test has tokens and fits the context");
  TestResult result;
  result.spec = spec;
  result.devices = static_cast<int>(lanes_.size());
  const bool own_peak = reset_peak_resident();
  if (spec.kind == TestSpec::Kind::kDecode) fill(spec, &result.ttft_ns);
  run_once(spec, nullptr);
  const HostWork work_before = host_work();
  const HeadStats head_before = head_stats();
  for (int i = 0; i < repeats; ++i) {
    const int64_t cpu_before = process_usage().cpu_ns;
    result.samples_ns.push_back(run_once(spec, &result));
    result.cpu_ns += process_usage().cpu_ns - cpu_before;
    on_run();
  }
  result.usage = process_usage();
  if (!own_peak) {
    result.usage.peak_resident_bytes =
        NotAvailable{"the system keeps one peak for the whole life of the process"};
  }
  result.host_work = difference(host_work(), work_before);
  result.head = head_stats();
  result.head.steps -= head_before.steps;
  result.head.rescored -= head_before.rescored;
  if (spec.kind == TestSpec::Kind::kDecode) {
    result.launches = lanes_.front().backend->step_launches(static_cast<size_t>(spec.batch));
  }
  result.gpu = sensors_ ? Measured<GpuObservation>(observe(spec)) : sensors_.missing();
  return result;
}

}  // namespace edgellm::bench
