#include "engine/cuda/step_graphs.h"

#include <algorithm>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/number_format.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda.h"

namespace edgellm {

size_t StepGraphs::step_rows(size_t rows) const {
  if (rows <= cuda::kMaxInlineRows) return rows;
  const size_t apart = rows <= 64 ? 8 : rows <= 256 ? 32 : 128;
  return std::min((rows + apart - 1) / apart * apart, max_rows_);
}

void StepGraphs::launch(size_t rows, size_t n_banned, cudaStream_t stream) {
  Step& step = steps_[{rows, n_banned}];
  // A graph takes some milliseconds: while a batch fills up or empties, few steps are of the same
  // size.
  constexpr int kStepsBefore = 8;
  const bool is_due = rows <= cuda::kMaxInlineRows || step.times++ >= kStepsBefore;
  if (step.kernels == 0 && is_due) capture(step, rows, n_banned, stream);
  if (step.graph) {
    step.graph->launch(stream);
  } else {
    run_step_(rows, n_banned);
  }
}

void StepGraphs::capture(Step& step, size_t rows, size_t n_banned, cudaStream_t stream) const {
  const int64_t start_ns = now_ns();
  Capture capture(stream);
  run_step_(rows, n_banned);
  const cudaGraph_t graph = capture.finish();
  cuda::cuda_check(cudaGraphGetNodes(graph, nullptr, &step.kernels),
                   "counting the nodes of a graph");
  if (use_graph_) step.graph.emplace(graph);
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, "captured a decode step: " + std::to_string(rows) + " rows, " +
                              std::to_string(n_banned) + " banned ids, " +
                              std::to_string(step.kernels) + " nodes, in " +
                              human_ms(now_ns() - start_ns));
  }
}

StepLaunches StepGraphs::launches(size_t rows) const {
  const size_t captured = step_rows(rows);
  const auto found = steps_.lower_bound({captured, 0});
  if (found == steps_.end() || found->first.first != captured) return {};
  const Step& step = found->second;
  return step.graph ? StepLaunches{1, step.kernels} : StepLaunches{step.kernels, 0};
}

}  // namespace edgellm
