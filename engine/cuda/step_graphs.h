// Decode steps as CUDA graphs. The launches of a step depend on its size alone: all else is read
// from device memory. So a step is captured once for each size, and replayed from then on.
#pragma once

#include <cuda_runtime.h>

#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "engine/backend.h"
#include "engine/cuda/resources.h"

namespace edgellm {

struct StepSize {
  size_t rows = 0;
  size_t n_banned = 0;     // ids
  size_t reach = 0;        // AttentionArgs::decode_reach
  bool by_rules = false;   // ids by the sequences' rules; else arg-maxes
  bool keeps_few = false;  // all of those rules (kernels/choice.h)

  auto operator<=>(const StepSize&) const = default;
};

class StepGraphs {
 public:
  // Launches the kernels of a step one by one.
  using RunStep = std::function<void(const StepSize& size)>;

  StepGraphs(const EngineOptions& options, RunStep run_step)
      : max_rows_(static_cast<size_t>(options.max_rows)),
        use_graph_(options.use_graph),
        run_step_(std::move(run_step)) {}

  // The rows of the step that serves a batch of `rows` rows. Few graphs serve all batches, and few
  // rows of a step are not the batch's.
  size_t step_rows(size_t rows) const;

  // The reach of a step of `rows` rows, the longest of which sees `positions` positions. When a
  // context passes a reach, the run waits for the next graph: 1.5 ms on an H200.
  static size_t step_reach(size_t rows, size_t positions);

  // Launches a step of step_rows() rows, as one graph or kernel by kernel. `n_ahead`: steps of the
  // run, from this one on, if no sequence ends early.
  void launch(const StepSize& size, int n_ahead, cudaStream_t stream);

  // Backend::step_launches().
  StepLaunches launches(size_t rows) const;

 private:
  struct Step {
    int times = 0;
    size_t kernels = 0;              // once it was captured
    std::optional<GraphExec> graph;  // never for --no-graph
  };

  void capture(Step& step, const StepSize& size, cudaStream_t stream) const;

  size_t max_rows_;
  bool use_graph_;
  RunStep run_step_;
  std::map<StepSize, Step> steps_;
};

}  // namespace edgellm
