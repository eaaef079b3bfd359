#include "apps/serve/metrics.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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
  explicit MetricsText(const std::vector<ModelMetrics>& models) : models_(models) {}

  // Of the server.
  template <class T>
  void of_server(const std::string& name, const char* type, const std::string& help, T value) {
    head(name, type, help);
    text_ += kPrefix + name + " " + number(value) + "\n";
  }

  // Of each model; `value` gets its state.
  template <class Value>
  void gauge(const std::string& name, const std::string& help, Value value) {
    single(name, "gauge", help, value);
  }
  template <class Value>
  void counter(const std::string& name, const std::string& help, Value value) {
    single(name, "counter", help, value);
  }

  // Of each device of each loaded model, counted from 1 as messages do.
  template <class Value>
  void device_gauge(const std::string& name, const std::string& help, Value value) {
    head(name, "gauge", help);
    for (const ModelMetrics& model : models_) {
      for (size_t i = 0; i < model.state.devices.size(); ++i) {
        const EngineStatus& device = model.state.devices[i];
        text_ += kPrefix + name + "{" + labels_of(model) + ",device=\"" + number(i + 1) +
                 "\",device_name=\"" + label(device.device) + "\"} " + number(value(device)) + "\n";
      }
    }
  }

  // Of each model, with its figures as labels: the form that the Kubernetes inference gateway
  // reads.
  void cache_config() {
    const std::string name = "cache_config_info";
    head(name, "gauge", "Positions of a KV cache's block and number of blocks, in the labels.");
    for (const ModelMetrics& model : models_) {
      text_ += kPrefix + name + "{" + labels_of(model) + ",block_size=\"" +
               number(kKvBlockPositions) + "\",num_gpu_blocks=\"" + number(model.state.kv_blocks) +
               "\"} 1\n";
    }
  }

  void histogram(const std::string& name, const std::string& help,
                 SecondsHistogram EngineState::*values) {
    head(name, "histogram", help);
    const std::string full = kPrefix + name;
    for (const ModelMetrics& model : models_) {
      const std::string labels = labels_of(model);
      const SecondsHistogram& cells = model.state.*values;
      for (size_t i = 0; i < SecondsHistogram::kBounds.size(); ++i) {
        text_ += full + "_bucket{" + labels + ",le=\"" + number(SecondsHistogram::kBounds[i]) +
                 "\"} " + number(cells.up_to(i)) + "\n";
      }
      text_ += full + "_bucket{" + labels + ",le=\"+Inf\"} " + number(cells.count()) + "\n";
      text_ += full + "_sum{" + labels + "} " + number(cells.sum()) + "\n";
      text_ += full + "_count{" + labels + "} " + number(cells.count()) + "\n";
    }
  }

  const std::string& text() const { return text_; }

 private:
  inline static const std::string kPrefix = "edgellm:";

  static std::string labels_of(const ModelMetrics& model) {
    return "model_name=\"" + label(model.name) + "\"";
  }

  void head(const std::string& name, const char* type, const std::string& help) {
    text_ += "# HELP " + kPrefix + name + " " + help + "\n";
    text_ += "# TYPE " + kPrefix + name + " " + type + "\n";
  }

  template <class Value>
  void single(const std::string& name, const char* type, const std::string& help, Value value) {
    head(name, type, help);
    for (const ModelMetrics& model : models_) {
      text_ += kPrefix + name + "{" + labels_of(model) + "} " + number(value(model.state)) + "\n";
    }
  }

  const std::vector<ModelMetrics>& models_;
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

void SecondsHistogram::add(const SecondsHistogram& other) {
  for (size_t i = 0; i < cells_.size(); ++i) cells_[i] += other.cells_[i];
  count_ += other.count_;
  sum_ += other.sum_;
}

void EngineState::add_counts(const EngineState& earlier) {
  counters.add(earlier.counters);
  cancelled += earlier.cancelled;
  refused += earlier.refused;
  failed_devices += earlier.failed_devices;
  ttft.add(earlier.ttft);
  inter_token.add(earlier.inter_token);
  duration.add(earlier.duration);
}

std::string metrics_text(const ServerMetrics& metrics) {
  using State = EngineState;
  MetricsText text(metrics.models);
  text.of_server("connections", "gauge", "Open connections.", metrics.connections);
  text.gauge("num_requests_waiting", "Answers that wait for a sequence or for KV cache.",
             [](const State& state) { return state.waiting; });
  text.gauge("num_requests_running", "Answers that are being made.",
             [](const State& state) { return state.running; });
  text.gauge("kv_cache_usage_perc", "Share of the KV cache's blocks in use, 0 to 1.",
             [](const State& state) {
               return state.kv_blocks > 0
                          ? static_cast<double>(state.kv_blocks_used) / state.kv_blocks
                          : 0.0;
             });
  text.gauge("kv_cache_blocks", "Blocks of the KV cache; 0 where the model is not loaded.",
             [](const State& state) { return state.kv_blocks; });
  text.gauge("kv_cache_blocks_cached", "Blocks kept for later prompts.",
             [](const State& state) { return state.kv_blocks_cached; });
  text.of_server("kv_block_positions", "gauge", "Positions of a block.", kKvBlockPositions);
  text.cache_config();
  text.counter("prompt_tokens_total", "Prompt tokens that were computed.",
               [](const State& state) { return state.counters.prompt_ids; });
  text.counter("prompt_tokens_cached_total", "Prompt tokens found in the prefix cache.",
               [](const State& state) { return state.counters.shared_prompt_ids; });
  text.counter("tokens_predicted_total", "Tokens generated.",
               [](const State& state) { return state.counters.output_ids; });
  text.counter("requests_total", "Answers that have ended.",
               [](const State& state) { return state.counters.requests; });
  text.counter("requests_failed_total", "Answers that ended with an error.",
               [](const State& state) { return state.counters.failures; });
  text.counter("requests_cancelled_total",
               "Answers that ended early: the client had gone, or time was up.",
               [](const State& state) { return state.cancelled; });
  text.counter("requests_refused_total", "Requests refused because the queue was full.",
               [](const State& state) { return state.refused; });
  text.counter("passes_total", "Passes of the model.",
               [](const State& state) { return state.counters.passes; });
  text.counter("device_busy_seconds_total", "Time in passes of the model.",
               [](const State& state) { return seconds(state.counters.pass_ns); });
  text.counter("devices_failed_total", "Devices that failed and were taken out.",
               [](const State& state) { return state.failed_devices; });
  text.device_gauge("device_up", "1 while the device works, 0 once it was taken out.",
                    [](const EngineStatus& device) { return device.failure ? 0 : 1; });
  text.device_gauge("device_requests_running", "Answers that the device is making.",
                    [](const EngineStatus& device) { return device.active; });
  text.device_gauge("device_kv_cache_usage_perc", "As kv_cache_usage_perc, of one device.",
                    [](const EngineStatus& device) {
                      return static_cast<double>(device.kv_blocks_used) / device.kv_blocks;
                    });
  text.device_gauge("device_tokens_predicted",
                    "Tokens that the device has generated since the "
                    "model was loaded.",
                    [](const EngineStatus& device) { return device.counters.output_ids; });
  if (metrics.gpu_joules) {
    int64_t tokens = 0;
    for (const ModelMetrics& model : metrics.models) tokens += model.state.counters.output_ids;
    text.of_server("gpu_energy_joules_total", "counter",
                   "Energy that the GPU has taken since the server began, idle time included.",
                   *metrics.gpu_joules);
    if (tokens > 0) {
      text.of_server("joules_per_token", "gauge", "That energy by the tokens generated.",
                     *metrics.gpu_joules / static_cast<double>(tokens));
    }
  }
  text.histogram("time_to_first_token_seconds", "From a request to its first token.",
                 &EngineState::ttft);
  text.histogram("inter_token_latency_seconds", "Between two tokens of an answer.",
                 &EngineState::inter_token);
  text.histogram("e2e_request_latency_seconds", "From a request to its end.",
                 &EngineState::duration);
  return text.text();
}

}  // namespace edgellm::serve
