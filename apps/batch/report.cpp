#include "apps/batch/report.h"

#include <algorithm>

#include "base/number_format.h"

namespace edgellm {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// A log of a night must stay readable.
constexpr int64_t kNoteInterval = 30 * kSecond;
constexpr int64_t kLookInterval = kSecond / 10;

std::string rate(int64_t count, int64_t ns) {
  return human_count(static_cast<uint64_t>(std::max(0.0, per_second(count, ns))));
}

// Whole seconds: "1h2m3s".
std::string rough_duration(int64_t ns) {
  return go_duration(std::max<int64_t>(1, (ns + kSecond / 2) / kSecond) * kSecond);
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

// Null where nothing was measured.
nlohmann::ordered_json to_json(const Percentiles& values, bool any) {
  nlohmann::ordered_json json = {
      {"p50", values.p50}, {"p90", values.p90}, {"p99", values.p99}, {"max", values.max}};
  if (!any) {
    for (auto& value : json) value = nullptr;
  }
  return json;
}

// Sums over the engines, each a mean over its steps.
template <class Value>
double sum_of_means(const std::vector<EngineStatus>& engines, Value value) {
  double sum = 0;
  for (const EngineStatus& engine : engines) {
    sum += ratio(value(engine), static_cast<double>(engine.steps));
  }
  return sum;
}

template <class Value>
double sum(const std::vector<EngineStatus>& engines, Value value) {
  double total = 0;
  for (const EngineStatus& engine : engines) total += static_cast<double>(value(engine));
  return total;
}

SchedulerCounters counters_of(const std::vector<EngineStatus>& engines) {
  SchedulerCounters counters;
  for (const EngineStatus& engine : engines) counters.add(engine.counters);
  return counters;
}

Percentiles percentiles(const LatencyHistogram& latencies) {
  return {latencies.percentile(50), latencies.percentile(90), latencies.percentile(99),
          latencies.percentile(100)};
}

}  // namespace

void BatchReport::begin(int64_t n_total, int sequences) {
  total_ = n_total;
  sequences_ = sequences;
  began_at_ = now_ns();
  line_.emplace();
  next_note_ = began_at_ + kNoteInterval;
}

void BatchReport::answered(const RequestAnswer& answer) {
  ++answered_;
  const SequenceResult& first = answer.choices.front().result;
  int64_t queued = first.queued_ns;
  int64_t first_token = first.ttft_ns;
  int64_t end = first.total_ns;
  for (const AnswerChoice& choice : answer.choices) {
    queued = std::min(queued, choice.result.queued_ns);
    first_token = std::min(first_token, choice.result.ttft_ns);
    end = std::max(end, choice.result.total_ns);
    for (const int64_t ns : choice.result.inter_token_ns) inter_token_ns_.add(ns);
  }
  ttft_ns_.push_back(first_token - queued);
  latency_ns_.push_back(end - queued);
  queued_ns_.push_back(queued);
}

void BatchReport::failed(const RequestError& error) {
  if (failed_ == 0) first_failure_ = error.message;
  ++failed_;
  ++failures_[error.code];
}

void BatchReport::ended(const std::vector<EngineStatus>& engines) {
  engines_ = engines;
  ended_at_ = now_ns();
  line_.reset();
}

SchedulerCounters BatchReport::counters() const { return counters_of(engines_); }

bool BatchReport::has_failed_device() const {
  return std::ranges::any_of(engines_,
                             [](const EngineStatus& engine) { return engine.failure.has_value(); });
}

std::string BatchReport::state(const std::vector<EngineStatus>& engines, int64_t n_safe) const {
  const SchedulerCounters counters = counters_of(engines);
  const int64_t elapsed = now_ns() - began_at_;
  std::string text = std::to_string(n_safe + answered_before_);
  if (total_ > 0) text += "/" + std::to_string(total_);
  text += " done";
  if (failed_ > 0) text += " (" + std::to_string(failed_) + " failed)";
  const int64_t left = total_ - answered_before_ - n_safe;
  if (n_safe > 0 && left > 0) {
    const double each = static_cast<double>(elapsed) / static_cast<double>(n_safe);
    text += ", ETA " + rough_duration(static_cast<int64_t>(each * static_cast<double>(left)));
  }
  return text + ", tok/s " + rate(counters.prompt_ids + counters.shared_prompt_ids, elapsed) +
         " in, " + rate(counters.output_ids, elapsed) + " out, " +
         fixed(sum(engines, [](const EngineStatus& e) { return e.active; }), 0) + " active, KV " +
         fixed(100 * ratio(sum(engines, [](const EngineStatus& e) { return e.kv_blocks_used; }),
                           sum(engines, [](const EngineStatus& e) { return e.kv_blocks; })),
               0) +
         "%";
}

void BatchReport::look(const Dispatcher& dispatcher, int64_t n_safe) {
  const int64_t now = now_ns();
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  if (line_->is_drawn()) {
    line_->update(state(dispatcher.status(), n_safe), 0, 0);
  } else if (now >= next_note_) {
    next_note_ = now + kNoteInterval;
    print_note(state(dispatcher.status(), n_safe));
  }
}

void BatchReport::print(const std::string& output_name, bool with_failure) const {
  const int64_t elapsed = ended_at_ - began_at_;
  std::string first = std::to_string(answered_) + " answered";
  if (failed_ > 0) first += ", " + std::to_string(failed_) + " failed";
  if (answered_before_ > 0) first += ", " + std::to_string(answered_before_) + " answered before";
  if (!output_name.empty()) first += ": " + output_name;
  // With failures the command ends with exit code 7, and this line says why.
  failed_ > 0 ? print_error(first) : print_note(first);
  if (failed_ > 0 && with_failure) print_note("the first failure: " + first_failure_);
  if (answered_ == 0) return;
  const SchedulerCounters all = counters();
  const int64_t n_in = all.prompt_ids + all.shared_prompt_ids;
  const std::string duration = elapsed < kSecond
                                   ? human_ms(elapsed)
                                   : fixed(static_cast<double>(elapsed) / kSecond, 1) + " s";
  std::string tokens = "in " + duration + ": " + std::to_string(n_in) + " tokens in (" +
                       rate(n_in, elapsed) + " tok/s";
  if (all.shared_prompt_ids > 0) {
    tokens += ", " + std::to_string(all.shared_prompt_ids) + " from the cache";
  }
  print_note(tokens + "), " + std::to_string(all.output_ids) + " out (" +
             rate(all.output_ids, elapsed) + " tok/s)");
  const Percentiles ttft = percentiles(ttft_ns_);
  const Percentiles inter_token = percentiles(inter_token_ns_);
  const Percentiles latency = percentiles(latency_ns_);
  print_note("first token p50 " + human_ms(ttft.p50) + ", p99 " + human_ms(ttft.p99) +
             "; between tokens p50 " + human_ms(inter_token.p50) + ", p99 " +
             human_ms(inter_token.p99) + "; answer p50 " + human_ms(latency.p50) + ", p99 " +
             human_ms(latency.p99) + "; " +
             fixed(sum_of_means(engines_, [](const EngineStatus& e) { return e.active_sum; }), 1) +
             " of " + std::to_string(sequences_) + " sequences at work, " +
             (engines_.size() > 1 ? std::to_string(engines_.size()) + " devices" : "device") +
             " busy " + fixed(100 * busy(elapsed), 0) + "%");
  for (size_t i = 0; i < engines_.size(); ++i) {
    if (!engines_[i].failure) continue;
    print_error("device " + std::to_string(i + 1) + ", " + engines_[i].device +
                ", failed: " + engines_[i].failure->message + "; the others took over " +
                std::to_string(engines_[i].n_taken_over) + " requests");
  }
}

// The share of the time that a device was at work; of several, the mean.
double BatchReport::busy(int64_t elapsed) const {
  return ratio(static_cast<double>(counters().pass_ns),
               static_cast<double>(elapsed) * static_cast<double>(engines_.size()));
}

nlohmann::ordered_json BatchReport::devices_json(int64_t elapsed) const {
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (const EngineStatus& engine : engines_) {
    devices.push_back(
        {{"device", engine.device},
         {"failure", nullptr},
         {"requests", engine.counters.requests},
         {"taken_over", engine.n_taken_over},
         {"prompt_tokens", engine.counters.prompt_ids + engine.counters.shared_prompt_ids},
         {"prompt_cached", engine.counters.shared_prompt_ids},
         {"output_tokens", engine.counters.output_ids},
         {"busy",
          ratio(static_cast<double>(engine.counters.pass_ns), static_cast<double>(elapsed))}});
    if (engine.failure) devices.back()["failure"] = engine.failure->message;
  }
  return devices;
}

nlohmann::ordered_json BatchReport::json() const {
  const int64_t elapsed = ended_at_ > 0 ? ended_at_ - began_at_ : 0;
  const SchedulerCounters all = counters();
  const double kv_blocks = sum(engines_, [](const EngineStatus& e) { return e.kv_blocks; });
  const int64_t n_in = all.prompt_ids + all.shared_prompt_ids;
  nlohmann::ordered_json failures = nlohmann::ordered_json::object();
  for (const auto& [code, count] : failures_) failures[code] = count;
  return {
      {"requests",
       {{"answered", answered_}, {"failed", failed_}, {"answered_before", answered_before_}}},
      {"failures", failures},
      {"run_ns", elapsed},
      {"tokens",
       {{"prompt", n_in}, {"prompt_cached", all.shared_prompt_ids}, {"output", all.output_ids}}},
      {"rates",
       {{"requests_per_s", per_second(answered_, elapsed)},
        {"prompt_tps", per_second(n_in, elapsed)},
        {"output_tps", per_second(all.output_ids, elapsed)}}},
      {"ttft_ns", to_json(percentiles(ttft_ns_), answered_ > 0)},
      {"latency_ns", to_json(percentiles(latency_ns_), answered_ > 0)},
      {"queued_ns", to_json(percentiles(queued_ns_), answered_ > 0)},
      {"inter_token_ns", to_json(percentiles(inter_token_ns_), inter_token_ns_.count() > 0)},
      {"utilisation",
       {{"busy", busy(elapsed)},
        {"passes", all.passes},
        {"rows_per_pass", ratio(static_cast<double>(all.prompt_ids + all.decode_rows),
                                static_cast<double>(all.passes))},
        {"sequences", sequences_},
        {"active_mean", sum_of_means(engines_, [](const EngineStatus& e) { return e.active_sum; })},
        {"active_max",
         static_cast<size_t>(sum(engines_, [](const EngineStatus& e) { return e.most_active; }))},
        {"kv_used_mean",
         ratio(sum_of_means(engines_, [](const EngineStatus& e) { return e.kv_used_sum; }),
               kv_blocks)},
        {"kv_used_max",
         ratio(sum(engines_, [](const EngineStatus& e) { return e.most_kv_used; }), kv_blocks)}}},
      {"devices", devices_json(elapsed)}};
}

}  // namespace edgellm
