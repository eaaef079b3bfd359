// Timing launches on a GPU by the GPU's own clock.
#pragma once

#include <functional>
#include <vector>

#include "engine/cuda/resources.h"

namespace edgellm::bench {

// What `work` launches becomes one CUDA Graph. Returns the times in microseconds of `repeats` runs
// of it, after a few warm-up runs. `poll` is called before each run and may throw.
std::vector<double> graph_times_us(const Stream& stream, int repeats,
                                   const std::function<void()>& work,
                                   const std::function<void()>& poll);

}  // namespace edgellm::bench
