#include "apps/bench/plan/estimate.h"

namespace edgellm::bench {

double batch_seconds(const Workload& work, const DeviceSpeed& speed, int64_t requests) {
  const int64_t rounds = (requests + speed.sequences - 1) / speed.sequences;
  const double prompts_s =
      static_cast<double>(requests) * static_cast<double>(work.prompt) / speed.prefill_ids_s;
  const double answers_s =
      static_cast<double>(rounds) * static_cast<double>(work.answer) * speed.step_s;
  return speed.start_s + prompts_s + answers_s;
}

int64_t largest_share(const Workload& work, int64_t devices) {
  return (work.requests + devices - 1) / devices;
}

std::optional<int64_t> devices_for(const Workload& work, const DeviceSpeed& speed,
                                   double deadline_s) {
  const auto is_in_time = [&](int64_t devices) {
    return batch_seconds(work, speed, largest_share(work, devices)) <= deadline_s;
  };
  if (!is_in_time(work.requests)) return std::nullopt;
  // More devices are never slower: bisection.
  int64_t too_few = 0, enough = work.requests;
  while (enough - too_few > 1) {
    const int64_t middle = too_few + (enough - too_few) / 2;
    (is_in_time(middle) ? enough : too_few) = middle;
  }
  return enough;
}

}  // namespace edgellm::bench
