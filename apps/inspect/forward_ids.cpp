#include "apps/inspect/forward_ids.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "apps/common/signals.h"
#include "base/error.h"

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
  if (row_bytes == 0) return backend.max_rows();
  return static_cast<int>(
      std::clamp<size_t>(kResultBytes / row_bytes, 1, static_cast<size_t>(backend.max_rows())));
}

}  // namespace

void forward_ids(Backend& backend, std::span<const int32_t> ids, const ForwardWants& wants,
                 const std::function<void(const ForwardPass&)>& on_pass) {
  const ModelConfig& config = backend.model().config();
  const int n_ids = static_cast<int>(ids.size());
  require(n_ids <= backend.context(), "forward_ids: more ids than the context");
  const int chunk = std::min(rows_per_pass(backend, wants), n_ids);
  const std::vector<int32_t> sequences(static_cast<size_t>(chunk), 0);
  std::vector<int32_t> positions(static_cast<size_t>(chunk));
  std::vector<int32_t> wanted_rows;
  std::vector<float> logits;
  std::vector<float> hidden;

  for (int first = 0; first < n_ids; first += chunk) {
    throw_if_interrupted();
    const int rows = std::min(chunk, n_ids - first);
    const auto n_rows = static_cast<size_t>(rows);
    std::iota(positions.begin(), positions.end(), first);
    wanted_rows.clear();
    if (wants.logits == WantLogits::kAll) {
      wanted_rows.resize(n_rows);
      std::iota(wanted_rows.begin(), wanted_rows.end(), 0);
    } else if (wants.logits == WantLogits::kLast && first + rows == n_ids) {
      wanted_rows.push_back(rows - 1);
    }
    logits.resize(wanted_rows.size() * static_cast<size_t>(config.vocab));
    if (wants.hidden) {
      hidden.resize(static_cast<size_t>(config.layers + 1) * n_rows *
                    static_cast<size_t>(config.dim));
    }
    backend.forward(
        {.ids = ids.subspan(static_cast<size_t>(first), n_rows),
         .sequences = std::span(sequences).first(n_rows),
         .positions = std::span(positions).first(n_rows)},
        {.rows = wanted_rows, .banned = {}, .argmax = {}, .logits = logits, .hidden = hidden});
    on_pass({.first = first, .rows = rows, .logits = logits, .hidden = hidden});
  }
}

}  // namespace edgellm
