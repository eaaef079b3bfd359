// The short measurement behind `edgellm plan`: prompts through the scheduler, as `batch` runs them,
// then decode steps of all sequences at the mean depth of an answer.
#pragma once

#include <functional>
#include <memory>

#include "apps/bench/plan/estimate.h"
#include "apps/common/measured.h"
#include "apps/nvml/nvml.h"
#include "engine/backend.h"
#include "engine/sampling.h"

namespace edgellm::bench {

struct PlanMeasurement {
  DeviceSpeed speed;           // without start_s
  Measured<double> prefill_j;  // energy of a prompt id
  Measured<double> decode_j;   // of an answer's id
};

// The sequences of the backend whose prompts and answers fit into its KV cache together, but no
// more than there are requests. 0: not even one fits.
int fitting_sequences(const Backend& backend, const Workload& work);

// `sequences` of fitting_sequences(), above 0. `poll` is called often and may throw to
// end the work.
PlanMeasurement measure_plan(Backend& backend, const Workload& work, int sequences,
                             const SamplingOptions& sampling,
                             const Measured<std::shared_ptr<NvmlDevice>>& sensors,
                             const std::function<void()>& poll);

}  // namespace edgellm::bench
