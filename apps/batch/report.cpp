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

void BatchReport::ended(const SchedulerCounters& counters) {
  counters_ = counters;
  ended_at_ = now_ns();
  line_.reset();
}

std::string BatchReport::state(const Scheduler& scheduler, int64_t n_safe) const {
  const SchedulerCounters& counters = scheduler.counters();
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
         std::to_string(scheduler.active()) + " active, KV " +
         fixed(100 * ratio(scheduler.blocks().used(), scheduler.blocks().total()), 0) + "%";
}

void BatchReport::step(const Scheduler& scheduler, int64_t n_safe) {
  ++passes_;
  active_sum_ += static_cast<double>(scheduler.active());
  kv_used_sum_ += scheduler.blocks().used();
  most_active_ = std::max(most_active_, scheduler.active());
  most_kv_used_ = std::max(most_kv_used_, scheduler.blocks().used());
  kv_blocks_ = scheduler.blocks().total();
  const int64_t now = now_ns();
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  if (line_->is_drawn()) {
    line_->update(state(scheduler, n_safe), 0, 0);
  } else if (now >= next_note_) {
    next_note_ = now + kNoteInterval;
    print_note(state(scheduler, n_safe));
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
  const int64_t n_in = counters_.prompt_ids + counters_.shared_prompt_ids;
  const std::string duration = elapsed < kSecond
                                   ? human_ms(elapsed)
                                   : fixed(static_cast<double>(elapsed) / kSecond, 1) + " s";
  std::string tokens = "in " + duration + ": " + std::to_string(n_in) + " tokens in (" +
                       rate(n_in, elapsed) + " tok/s";
  if (counters_.shared_prompt_ids > 0) {
    tokens += ", " + std::to_string(counters_.shared_prompt_ids) + " from the cache";
  }
  print_note(tokens + "), " + std::to_string(counters_.output_ids) + " out (" +
             rate(counters_.output_ids, elapsed) + " tok/s)");
  const Percentiles ttft = percentiles(ttft_ns_);
  const Percentiles inter_token = percentiles(inter_token_ns_);
  const Percentiles latency = percentiles(latency_ns_);
  print_note(
      "first token p50 " + human_ms(ttft.p50) + ", p99 " + human_ms(ttft.p99) +
      "; between tokens p50 " + human_ms(inter_token.p50) + ", p99 " + human_ms(inter_token.p99) +
      "; answer p50 " + human_ms(latency.p50) + ", p99 " + human_ms(latency.p99) + "; " +
      fixed(ratio(active_sum_, static_cast<double>(passes_)), 1) + " of " +
      std::to_string(sequences_) + " sequences at work, device busy " +
      fixed(100 * ratio(static_cast<double>(counters_.pass_ns), static_cast<double>(elapsed)), 0) +
      "%");
}

nlohmann::ordered_json BatchReport::json() const {
  const int64_t elapsed = ended_at_ > 0 ? ended_at_ - began_at_ : 0;
  const auto passes = static_cast<double>(passes_);
  const int64_t n_in = counters_.prompt_ids + counters_.shared_prompt_ids;
  nlohmann::ordered_json failures = nlohmann::ordered_json::object();
  for (const auto& [code, count] : failures_) failures[code] = count;
  return {
      {"requests",
       {{"answered", answered_}, {"failed", failed_}, {"answered_before", answered_before_}}},
      {"failures", failures},
      {"run_ns", elapsed},
      {"tokens",
       {{"prompt", n_in},
        {"prompt_cached", counters_.shared_prompt_ids},
        {"output", counters_.output_ids}}},
      {"rates",
       {{"requests_per_s", per_second(answered_, elapsed)},
        {"prompt_tps", per_second(n_in, elapsed)},
        {"output_tps", per_second(counters_.output_ids, elapsed)}}},
      {"ttft_ns", to_json(percentiles(ttft_ns_), answered_ > 0)},
      {"latency_ns", to_json(percentiles(latency_ns_), answered_ > 0)},
      {"queued_ns", to_json(percentiles(queued_ns_), answered_ > 0)},
      {"inter_token_ns", to_json(percentiles(inter_token_ns_), inter_token_ns_.count() > 0)},
      {"utilisation",
       {{"busy", ratio(static_cast<double>(counters_.pass_ns), static_cast<double>(elapsed))},
        {"passes", counters_.passes},
        {"rows_per_pass", ratio(static_cast<double>(counters_.prompt_ids + counters_.decode_rows),
                                static_cast<double>(counters_.passes))},
        {"sequences", sequences_},
        {"active_mean", ratio(active_sum_, passes)},
        {"active_max", most_active_},
        {"kv_used_mean", ratio(kv_used_sum_, passes * kv_blocks_)},
        {"kv_used_max", ratio(most_kv_used_, kv_blocks_)}}}};
}

}  // namespace edgellm
