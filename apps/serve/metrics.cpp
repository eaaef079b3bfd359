#include "apps/serve/metrics.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/backend.h"

namespace edgellm::serve {
namespace {

// A number as Prometheus and people read it.
template <class T>
std::string number(T value) {
  return nlohmann::json(value).dump();
}

// Backslash, quote and newline are the only characters with a meaning in a label.
std::string label(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

class MetricsText {
 public:
  explicit MetricsText(const std::string& model) : labels_("model_name=\"" + label(model) + "\"") {}

  template <class T>
  void gauge(const std::string& name, const std::string& help, T value) {
    single(name, help, "gauge", value);
  }

  template <class T>
  void counter(const std::string& name, const std::string& help, T value) {
    single(name, help, "counter", value);
  }

  void histogram(const std::string& name, const std::string& help, const SecondsHistogram& values) {
    head(name, help, "histogram");
    const std::string full = kPrefix + name;
    for (size_t i = 0; i < SecondsHistogram::kBounds.size(); ++i) {
      text_ += full + "_bucket{" + labels_ + ",le=\"" + number(SecondsHistogram::kBounds[i]) +
               "\"} " + number(values.up_to(i)) + "\n";
    }
    text_ += full + "_bucket{" + labels_ + ",le=\"+Inf\"} " + number(values.count()) + "\n";
    text_ += full + "_sum{" + labels_ + "} " + number(values.sum()) + "\n";
    text_ += full + "_count{" + labels_ + "} " + number(values.count()) + "\n";
  }

  const std::string& text() const { return text_; }

 private:
  inline static const std::string kPrefix = "edgellm:";

  void head(const std::string& name, const std::string& help, const char* type) {
    text_ += "# HELP " + kPrefix + name + " " + help + "\n";
    text_ += "# TYPE " + kPrefix + name + " " + type + "\n";
  }

  template <class T>
  void single(const std::string& name, const std::string& help, const char* type, T value) {
    head(name, help, type);
    text_ += kPrefix + name + "{" + labels_ + "} " + number(value) + "\n";
  }

  std::string labels_;
  std::string text_;
};

double seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

}  // namespace

void SecondsHistogram::add(int64_t ns) {
  const double value = seconds(std::max<int64_t>(ns, 0));
  ++cells_[static_cast<size_t>(std::ranges::lower_bound(kBounds, value) - kBounds.begin())];
  ++count_;
  sum_ += value;
}

uint64_t SecondsHistogram::up_to(size_t i) const {
  uint64_t total = 0;
  for (size_t cell = 0; cell <= i; ++cell) total += cells_[cell];
  return total;
}

std::string metrics_text(const EngineState& state, const std::string& name, int connections) {
  const SchedulerCounters& counters = state.counters;
  MetricsText text(name);
  text.gauge("num_requests_waiting", "Answers that wait for a sequence or for KV cache.",
             state.waiting);
  text.gauge("num_requests_running", "Answers that are being made.", state.running);
  text.gauge("kv_cache_usage_perc", "Share of the KV cache's blocks in use, 0 to 1.",
             state.kv_blocks > 0 ? static_cast<double>(state.kv_blocks_used) / state.kv_blocks : 0);
  text.gauge("kv_cache_blocks", "Blocks of the KV cache.", state.kv_blocks);
  text.gauge("kv_cache_blocks_cached", "Blocks kept for later prompts.", state.kv_blocks_cached);
  text.gauge("kv_block_positions", "Positions of a block.", kKvBlockPositions);
  text.gauge("connections", "Open connections.", connections);
  text.counter("prompt_tokens_total", "Prompt tokens that were computed.", counters.prompt_ids);
  text.counter("prompt_tokens_cached_total", "Prompt tokens found in the prefix cache.",
               counters.shared_prompt_ids);
  text.counter("tokens_predicted_total", "Tokens generated.", counters.output_ids);
  text.counter("requests_total", "Answers that have ended.", counters.requests);
  text.counter("requests_failed_total", "Answers that ended with an error.", counters.failures);
  text.counter("requests_cancelled_total",
               "Answers that ended early: the client had gone, or time was up.", state.cancelled);
  text.counter("requests_refused_total", "Requests refused because the queue was full.",
               state.refused);
  text.counter("passes_total", "Passes of the model.", counters.passes);
  text.counter("device_busy_seconds_total", "Time in passes of the model.",
               seconds(counters.pass_ns));
  text.histogram("time_to_first_token_seconds", "From a request to its first token.", state.ttft);
  text.histogram("inter_token_latency_seconds", "Between two tokens of an answer.",
                 state.inter_token);
  text.histogram("e2e_request_latency_seconds", "From a request to its end.", state.duration);
  return text.text();
}

}  // namespace edgellm::serve
