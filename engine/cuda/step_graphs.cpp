#include "engine/cuda/step_graphs.h"

#include <algorithm>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/number_format.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/ops.h"

namespace edgellm {

size_t StepGraphs::step_rows(size_t rows) const {
  if (rows <= cuda::kMaxInlineRows) return rows;
  const size_t apart = rows <= 64 ? 8 : rows <= 256 ? 32 : 128;
  return std::min((rows + apart - 1) / apart * apart, max_rows_);
}

size_t StepGraphs::step_reach(size_t rows, size_t positions) {
  return static_cast<size_t>(decode_reach(static_cast<int>(rows), static_cast<int>(positions)));
}

void StepGraphs::launch(const StepSize& size, int n_ahead, cudaStream_t stream) {
  Step& step = steps_[size];
  // A graph takes some milliseconds: while a batch fills up or empties, few steps are of the same
  // size.
  constexpr int kStepsBefore = 8;
  constexpr int kLongRun = 32;
  const bool is_due =
      size.rows <= cuda::kMaxInlineRows || n_ahead >= kLongRun || step.times++ >= kStepsBefore;
  if (step.kernels == 0 && is_due) capture(step, size, stream);
  if (step.graph) {
    step.graph->launch(stream);
  } else {
    run_step_(size);
  }
}

void StepGraphs::capture(Step& step, const StepSize& size, cudaStream_t stream) const {
  const int64_t start_ns = now_ns();
  Capture capture(stream);
  run_step_(size);
  const cudaGraph_t graph = capture.finish();
  cuda::cuda_check(cudaGraphGetNodes(graph, nullptr, &step.kernels),
                   "counting the nodes of a graph");
  if (use_graph_) step.graph.emplace(graph);
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug,
        "captured a decode step: " + std::to_string(size.rows) + " rows, " +
            (size.keeps_few  ? "ids by rules that keep few, "
             : size.by_rules ? "ids by rules, "
                             : std::to_string(size.n_banned) + " banned ids, ") +
            (size.reach > 0 ? "up to " + std::to_string(size.reach) + " positions, " : "") +
            std::to_string(step.kernels) + " nodes, in " + human_ms(now_ns() - start_ns));
  }
}

StepLaunches StepGraphs::launches(size_t rows) const {
  const size_t captured = step_rows(rows);
  const auto found = steps_.lower_bound({.rows = captured});
  if (found == steps_.end() || found->first.rows != captured) return {};
  const Step& step = found->second;
  return step.graph ? StepLaunches{1, step.kernels} : StepLaunches{step.kernels, 0};
}

}  // namespace edgellm
