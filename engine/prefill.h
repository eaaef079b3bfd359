// Feeds known ids to one sequence, pass by pass: the prefill of a prompt.
//
//   Prefill prefill(backend, sequence, first, ids);
//   while (!prefill.is_done()) {
//     throw_if_interrupted();
//     prefill.run_pass_for_last_id(outputs);
//   }
//
// The loop belongs to the caller, who can stop between two passes and knows after an error how many
// ids the cache holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend.h"

namespace edgellm {

class Prefill {
 public:
  // `ids` take the positions from `first` on; the cache holds all positions before `first`.
  // `max_rows` bounds a pass further than the backend does; 0: only the backend does.
  Prefill(Backend& backend, int sequence, int first, std::span<const int32_t> ids,
          int max_rows = 0);

  bool is_done() const { return n_fed_ == ids_.size(); }
  size_t n_fed() const { return n_fed_; }  // ids whose pass has returned
  size_t rows() const;                     // of the next pass
  bool is_last_pass() const { return n_fed_ + rows() == ids_.size(); }

  // Runs the next pass, all of whose rows `outputs` may ask for.
  void run_pass(const Outputs& outputs);

  // Runs the next pass where only the results of the last id are wanted. The last pass gives
  // `outputs`, whose `rows` are set here; the passes before it only fill the cache.
  void run_pass_for_last_id(Outputs outputs);

 private:
  Backend& backend_;
  const int first_;
  const std::span<const int32_t> ids_;
  std::vector<int32_t> sequences_;  // [rows of the longest pass], all the same
  std::vector<int32_t> positions_;  // [rows of the longest pass]
  size_t n_fed_ = 0;
};

}  // namespace edgellm
