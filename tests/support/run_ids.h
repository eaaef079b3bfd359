// Runs ids through a backend and collects what the tests compare.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "engine/backend.h"

namespace edgellm::test {

struct Results {
  std::vector<float> logits;  // [ids, vocab]
  std::vector<float> hidden;  // [layers + 1, ids, dim]
};

// Feeds `ids` to sequence 0 from position `first` on, `chunk` rows a pass (0: as many as fit), with
// logits of every row; hidden states where `with_hidden`.
inline Results run_ids(Backend& backend, std::span<const int32_t> ids, int chunk = 0,
                       bool with_hidden = false, int first = 0) {
  const ModelConfig& config = backend.model().config();
  const size_t vocab = static_cast<size_t>(config.vocab);
  const size_t dim = static_cast<size_t>(config.dim);
  const size_t planes = static_cast<size_t>(config.layers) + 1;
  if (chunk == 0) chunk = backend.info().max_rows;
  Results results;
  results.logits.resize(ids.size() * vocab);
  if (with_hidden) results.hidden.resize(planes * ids.size() * dim);
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(chunk)) {
    const size_t rows = std::min(ids.size() - begin, static_cast<size_t>(chunk));
    const std::vector<int32_t> sequences(rows, 0);
    std::vector<int32_t> positions(rows);
    std::iota(positions.begin(), positions.end(), first + static_cast<int>(begin));
    std::vector<int32_t> output_rows(rows);
    std::iota(output_rows.begin(), output_rows.end(), 0);
    std::vector<float> hidden(with_hidden ? planes * rows * dim : 0);
    Outputs outputs;
    outputs.rows = output_rows;
    outputs.logits = std::span(results.logits).subspan(begin * vocab, rows * vocab);
    outputs.hidden = hidden;
    backend.forward({ids.subspan(begin, rows), sequences, positions}, outputs);
    if (with_hidden) {
      for (size_t plane = 0; plane < planes; ++plane) {
        std::copy_n(
            hidden.begin() + static_cast<ptrdiff_t>(plane * rows * dim), rows * dim,
            results.hidden.begin() + static_cast<ptrdiff_t>((plane * ids.size() + begin) * dim));
      }
    }
  }
  return results;
}

}  // namespace edgellm::test
