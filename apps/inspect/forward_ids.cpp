#include "apps/inspect/forward_ids.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "apps/common/signals.h"
#include "base/error.h"
#include "engine/prefill.h"

namespace edgellm {
namespace {

// Bounds the results of one pass: with a vocabulary of 128256, logits of 256 rows take 131 MB.
constexpr size_t kResultBytes = size_t{64} << 20;

int rows_per_pass(const Backend& backend, const ForwardWants& wants) {
  const ModelConfig& config = backend.model().config();
  size_t row_bytes = 0;
  if (wants.logits == WantLogits::kAll)
    row_bytes += sizeof(float) * static_cast<size_t>(config.vocab);
  if (wants.hidden) {
    row_bytes +=
        sizeof(float) * static_cast<size_t>(config.layers + 1) * static_cast<size_t>(config.dim);
  }
  if (row_bytes == 0) return backend.info().max_rows;
  return static_cast<int>(std::clamp<size_t>(kResultBytes / row_bytes, 1,
                                             static_cast<size_t>(backend.info().max_rows)));
}

}  // namespace

void forward_ids(Backend& backend, std::span<const int32_t> ids, const ForwardWants& wants,
                 const std::function<void(const ForwardPass&)>& on_pass) {
  const ModelConfig& config = backend.model().config();
  require(ids.size() <= static_cast<size_t>(backend.info().context),
          "forward_ids: more ids than the context");
  std::vector<int32_t> wanted_rows;
  std::vector<float> logits;
  std::vector<float> hidden;
  Prefill prefill(backend, /*sequence=*/0, /*first=*/0, ids, rows_per_pass(backend, wants));
  while (!prefill.is_done()) {
    throw_if_interrupted();
    const auto first = static_cast<int>(prefill.n_fed());
    const size_t rows = prefill.rows();
    wanted_rows.clear();
    if (wants.logits == WantLogits::kAll) {
      const size_t n_fed = prefill.n_fed();
      const size_t left_out = std::min(rows, std::max(wants.logits_from, n_fed) - n_fed);
      wanted_rows.resize(rows - left_out);
      std::iota(wanted_rows.begin(), wanted_rows.end(), static_cast<int32_t>(left_out));
    } else if (wants.logits == WantLogits::kLast && prefill.is_last_pass()) {
      wanted_rows.push_back(static_cast<int32_t>(rows) - 1);
    }
    logits.resize(wanted_rows.size() * static_cast<size_t>(config.vocab));
    if (wants.hidden) {
      hidden.resize(static_cast<size_t>(config.layers + 1) * rows *
                    static_cast<size_t>(config.dim));
    }
    Outputs outputs;
    outputs.rows = wanted_rows;
    outputs.logits = logits;
    outputs.hidden = hidden;
    prefill.run_pass(outputs);
    on_pass({.first = first, .rows = static_cast<int>(rows), .logits = logits, .hidden = hidden});
  }
}

}  // namespace edgellm
