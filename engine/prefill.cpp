#include "engine/prefill.h"

#include <algorithm>
#include <numeric>

namespace edgellm {

Prefill::Prefill(Backend& backend, int sequence, int first, std::span<const int32_t> ids,
                 int max_rows)
    : backend_(backend), first_(first), ids_(ids) {
  const int most =
      max_rows > 0 ? std::min(max_rows, backend.info().max_rows) : backend.info().max_rows;
  const size_t longest = std::min(static_cast<size_t>(most), ids.size());
  sequences_.resize(longest, sequence);
  positions_.resize(longest);
}

size_t Prefill::rows() const { return std::min(positions_.size(), ids_.size() - n_fed_); }

void Prefill::run_pass(const Outputs& outputs) {
  const size_t n = rows();
  std::iota(positions_.begin(), positions_.end(), first_ + static_cast<int>(n_fed_));
  backend_.forward({.ids = ids_.subspan(n_fed_, n),
                    .sequences = std::span(sequences_).first(n),
                    .positions = std::span(positions_).first(n)},
                   outputs);
  n_fed_ += n;
}

void Prefill::run_pass_for_last_id(Outputs outputs) {
  const auto last_row = static_cast<int32_t>(rows() - 1);
  outputs.rows = {&last_row, 1};
  run_pass(is_last_pass() ? outputs : Outputs());
}

}  // namespace edgellm
