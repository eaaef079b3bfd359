#include "apps/bench/gpu_monitor.h"

#include <algorithm>
#include <chrono>

#include "apps/common/statistics.h"
#include "base/clock.h"

namespace edgellm::bench {
namespace {

// Reading the two bus counters takes 40 ms already.
constexpr auto kPause = std::chrono::milliseconds(10);

GpuSample read_sample(const NvmlDevice& device, int64_t at_ns) {
  GpuSample sample;
  sample.at_ns = at_ns;
  sample.power_w = device.power_w();
  sample.sm_clock_mhz = device.sm_clock_mhz();
  sample.memory_clock_mhz = device.memory_clock_mhz();
  sample.temperature_c = device.temperature_c();
  sample.throttle_reasons = device.throttle_reasons();
  sample.memory_used_bytes = device.memory_used_bytes();
  sample.process_memory_bytes = device.process_memory_bytes();
  sample.pcie_sent_bytes_per_s = device.pcie_sent_bytes_per_s();
  sample.pcie_received_bytes_per_s = device.pcie_received_bytes_per_s();
  return sample;
}

// Of the samples that have a value. Where none has, the reason of the first.
template <class T>
Measured<Summary> summary_of(const std::vector<GpuSample>& samples, Measured<T> GpuSample::*field) {
  std::vector<double> values;
  for (const GpuSample& sample : samples) {
    if (sample.*field) values.push_back(static_cast<double>(*(sample.*field)));
  }
  if (values.empty()) return (samples.front().*field).missing();
  return summarise(values);
}

// All that were seen.
Measured<std::vector<std::string>> throttle_reasons(const Measured<GpuObservation>& observation) {
  if (!observation) return observation.missing();
  uint64_t bits = 0;
  bool any = false;
  for (const GpuSample& sample : observation->samples) {
    if (!sample.throttle_reasons) continue;
    any = true;
    bits |= *sample.throttle_reasons;
  }
  if (!any) return observation->samples.front().throttle_reasons.missing();
  return throttle_reason_names(bits);
}

double mean(const Summary& summary) { return summary.mean; }
double largest(const Summary& summary) { return summary.max; }
double smallest(const Summary& summary) { return summary.min; }

}  // namespace

GpuRecording::GpuRecording(const NvmlDevice& device)
    : device_(device), start_ns_(now_ns()), energy_before_(device.energy_j()) {
  start_ns_ = now_ns();
  thread_ = std::thread([this] { watch(); });
}

GpuRecording::~GpuRecording() { stop(); }

int64_t GpuRecording::elapsed_ns() const { return now_ns() - start_ns_; }

void GpuRecording::watch() {
  std::unique_lock lock(mutex_);
  do {
    lock.unlock();
    samples_.push_back(read_sample(device_, elapsed_ns()));
    lock.lock();
  } while (!wake_.wait_for(lock, kPause, [this] { return stopping_; }));
}

void GpuRecording::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

GpuObservation GpuRecording::finish(int64_t tokens) {
  GpuObservation observation;
  observation.duration_ns = elapsed_ns();
  const Measured<double> energy_after = device_.energy_j();
  stop();
  observation.tokens = tokens;
  observation.power_is_instant = device_.power_is_instant();
  observation.samples = std::move(samples_);
  observation.energy_j =
      energy_before_ && energy_after
          ? Measured<double>(*energy_after - *energy_before_)
          : Measured<double>(energy_before_ ? energy_after.missing() : energy_before_.missing());
  return observation;
}

nlohmann::ordered_json to_json(const Measured<GpuObservation>& observation) {
  const auto of_samples = [&](auto field, double (*pick)(const Summary&)) -> Measured<double> {
    if (!observation) return observation.missing();
    return summary_of(observation->samples, field).map(pick);
  };
  const Measured<double> energy_j =
      observation ? observation->energy_j : Measured<double>(observation.missing());
  const double seconds = observation ? static_cast<double>(observation->duration_ns) / 1e9 : 0;
  const double tokens = observation ? static_cast<double>(observation->tokens) : 0;
  const auto per_token = [&](double bytes_per_s) { return bytes_per_s * seconds / tokens; };

  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  put(json, "observed_ns", observation.map([](const GpuObservation& o) { return o.duration_ns; }));
  put(json, "observed_tokens", observation.map([](const GpuObservation& o) { return o.tokens; }));
  put(json, "energy_j", energy_j);
  put(json, "j_per_token", energy_j.map([&](double j) { return j / tokens; }));
  put(json, "power_w_from_energy", energy_j.map([&](double j) { return j / seconds; }));
  put(json, "power_w_mean", of_samples(&GpuSample::power_w, mean));
  put(json, "power_w_peak", of_samples(&GpuSample::power_w, largest));
  put(json, "power_is_instant",
      observation.map([](const GpuObservation& o) { return o.power_is_instant; }));
  put(json, "sm_clock_mhz_mean", of_samples(&GpuSample::sm_clock_mhz, mean));
  put(json, "sm_clock_mhz_min", of_samples(&GpuSample::sm_clock_mhz, smallest));
  put(json, "memory_clock_mhz_mean", of_samples(&GpuSample::memory_clock_mhz, mean));
  put(json, "temperature_c_max", of_samples(&GpuSample::temperature_c, largest));
  put(json, "throttle_reasons", throttle_reasons(observation));
  put(json, "device_memory_used_bytes_peak", of_samples(&GpuSample::memory_used_bytes, largest));
  put(json, "process_memory_bytes_peak", of_samples(&GpuSample::process_memory_bytes, largest));
  put(json, "pcie_sent_bytes_per_token",
      of_samples(&GpuSample::pcie_sent_bytes_per_s, mean).map(per_token));
  put(json, "pcie_received_bytes_per_token",
      of_samples(&GpuSample::pcie_received_bytes_per_s, mean).map(per_token));
  auto power = nlohmann::ordered_json::array();
  if (observation) {
    for (const GpuSample& sample : observation->samples) {
      if (sample.power_w) power.push_back({sample.at_ns, *sample.power_w});
    }
  }
  json["power_samples"] = power;  // [ns since the first, W]
  return json;
}

}  // namespace edgellm::bench
