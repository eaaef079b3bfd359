// Decode steps as CUDA graphs. The launches of a step depend on its number of rows and of banned
// ids alone: all else is read from device memory. So a step is captured once for each such pair,
// and replayed from then on.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "engine/backend.h"
#include "engine/cuda/resources.h"

namespace edgellm {

class StepGraphs {
 public:
  // Launches the kernels of a step one by one.
  using RunStep = std::function<void(size_t rows, size_t n_banned)>;

  StepGraphs(const EngineOptions& options, RunStep run_step)
      : max_rows_(static_cast<size_t>(options.max_rows)),
        use_graph_(options.use_graph),
        run_step_(std::move(run_step)) {}

  // The rows of the step that serves a batch of `rows` rows. Few graphs serve all batches, and few
  // rows of a step are not the batch's.
  size_t step_rows(size_t rows) const;

  // Launches a step of step_rows() rows, as one graph or kernel by kernel.
  void launch(size_t rows, size_t n_banned, cudaStream_t stream);

  // Backend::step_launches().
  StepLaunches launches(size_t rows) const;

 private:
  struct Step {
    int times = 0;
    size_t kernels = 0;              // once it was captured
    std::optional<GraphExec> graph;  // never for --no-graph
  };

  void capture(Step& step, size_t rows, size_t n_banned, cudaStream_t stream) const;

  size_t max_rows_;
  bool use_graph_;
  RunStep run_step_;
  std::map<std::pair<size_t, size_t>, Step> steps_;  // by rows and banned ids
};

}  // namespace edgellm
