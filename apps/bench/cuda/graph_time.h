// Timing what is launched on a GPU, by the GPU's own clock.
#pragma once

#include <functional>
#include <vector>

#include "engine/cuda/resources.h"

namespace edgellm::bench {

// Times in microseconds of `repeats` runs of what `work` launches, as one CUDA Graph, after a few
// that do not count. `poll` is called between them and may throw.
std::vector<double> graph_times_us(const Stream& stream, int repeats,
                                   const std::function<void()>& work,
                                   const std::function<void()>& poll);

}  // namespace edgellm::bench
