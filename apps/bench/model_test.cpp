#include "apps/bench/model_test.h"

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "engine/block_pool.h"
#include "engine/prefill.h"

namespace edgellm::bench {
namespace {

// The CPU builds its int8 copy of the head at the 17th greedy step. A GPU captures its graph at the
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
    rates.push_back(1e9 * static_cast<double>(spec.run_tokens()) / static_cast<double>(ns));
  }
  return rates;
}

TestRunner::TestRunner(Backend& backend, Measured<std::shared_ptr<NvmlDevice>> sensors,
                       std::function<void()> poll, int sequences)
    : backend_(backend), sensors_(std::move(sensors)), poll_(std::move(poll)) {
  if (backend_.info().kv_blocks == 0) return;
  if (sequences == 0) sequences = backend_.info().sequences;
  // A sequence holds no more blocks than its context needs.
  const int each = std::min(backend_.info().kv_blocks / sequences,
                            BlockPool::blocks_for(backend_.info().context));
  std::vector<int32_t> blocks(static_cast<size_t>(each));
  std::iota(blocks.begin(), blocks.end(), 0);
  for (int sequence = 0; sequence < sequences; ++sequence) {
    backend_.set_blocks(sequence, blocks);
    for (int32_t& block : blocks) block += static_cast<int32_t>(blocks.size());
  }
}

// The ids do not change the work. Any that differ and lie in the vocabulary will do.
int32_t TestRunner::id_at(int sequence, int position) const {
  const auto vocab = static_cast<uint32_t>(backend_.model().config().vocab);
  const uint32_t mixed = (static_cast<uint32_t>(position) + 1) * 2654435761U +
                         static_cast<uint32_t>(sequence) * 40503U;
  return static_cast<int32_t>((mixed >> 8) % vocab);
}

// Returns the id that comes after the prompt.
int32_t TestRunner::prefill(int sequence, int tokens) {
  std::vector<int32_t> ids;
  for (int position = 0; position < tokens; ++position) ids.push_back(id_at(sequence, position));
  int32_t next = 0;
  Outputs outputs;
  outputs.ids = {&next, 1};
  Prefill prefill(backend_, sequence, /*first=*/0, ids);
  while (!prefill.is_done()) {
    poll_();
    prefill.run_pass_for_last_id(outputs);
  }
  return next;
}

// Fills the caches that a decode test starts from. Decoding writes only beyond its depth, so all
// runs of the test start from the same cache.
void TestRunner::fill(const TestSpec& spec, std::vector<int64_t>* ttft_ns) {
  next_.resize(static_cast<size_t>(spec.batch));
  for (int sequence = 0; sequence < spec.batch; ++sequence) {
    int32_t& next = next_[static_cast<size_t>(sequence)];
    if (spec.depth == 0) {
      next = id_at(sequence, 0);
      continue;
    }
    const int64_t start = now_ns();
    next = prefill(sequence, spec.depth);
    ttft_ns->push_back(now_ns() - start);
  }
}

// Every step has a row for each sequence. The call is the one that `run` and `batch` make.
int64_t TestRunner::decode(const TestSpec& spec, TestResult* result) {
  const auto rows = static_cast<size_t>(spec.batch);
  const std::vector<int32_t> positions(rows, spec.depth);
  std::vector<int32_t> sequences(rows);
  std::iota(sequences.begin(), sequences.end(), 0);
  for (const int32_t sequence : sequences) {
    backend_.set_choice(sequence, {.sampling = sampling_, .banned = {}, .prompt = {}});
  }
  const int64_t start = now_ns();
  int64_t last = start;
  int n_steps = 0;
  backend_.decode_rows({next_, sequences, positions}, spec.tokens, [&](std::span<const int32_t>) {
    const int64_t now = now_ns();
    poll_();
    if (result != nullptr) {
      if (n_steps > 0) result->inter_token_ns.push_back(now - last);
      if (n_steps == 0 && spec.depth == 0) {
        result->ttft_ns.push_back(now - start);
      }
    }
    ++n_steps;
    last = now;
    return true;
  });
  require(n_steps == spec.tokens, "a decode test ended early");
  return last - start;
}

int64_t TestRunner::run_once(const TestSpec& spec, TestResult* result) {
  if (spec.kind == TestSpec::Kind::kDecode) {
    return decode(spec, result);
  }
  const int64_t start = now_ns();
  prefill(/*sequence=*/0, spec.tokens);
  const int64_t ns = now_ns() - start;
  if (result != nullptr) result->ttft_ns.push_back(ns);
  return ns;
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
  spec.tokens = std::min(kWarmUpTokens, backend_.info().context);
  std::vector<int64_t> ignored;
  fill(spec, &ignored);
  run_once(spec, nullptr);
}

TestResult TestRunner::run(const TestSpec& spec, int repeats, const std::function<void()>& on_run) {
  require(spec.tokens >= 1 && spec.depth >= 0 && spec.batch >= 1 && repeats >= 1 &&
              spec.positions() <= backend_.info().context,
          "a test has tokens and fits the context");
  TestResult result;
  result.spec = spec;
  const bool own_peak = reset_peak_resident();
  if (spec.kind == TestSpec::Kind::kDecode) fill(spec, &result.ttft_ns);
  run_once(spec, nullptr);
  const HostWork work_before = backend_.host_work();
  const HeadStats head_before = backend_.head_stats();
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
  result.host_work = difference(backend_.host_work(), work_before);
  result.head = backend_.head_stats();
  result.head.steps -= head_before.steps;
  result.head.rescored -= head_before.rescored;
  if (spec.kind == TestSpec::Kind::kDecode) {
    result.launches = backend_.step_launches(static_cast<size_t>(spec.batch));
  }
  result.gpu = sensors_ ? Measured<GpuObservation>(observe(spec)) : sensors_.missing();
  return result;
}

}  // namespace edgellm::bench
