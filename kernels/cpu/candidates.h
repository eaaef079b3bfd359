// Ids that a choice is between, with their logits.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

namespace edgellm::cpu {

struct Candidate {
  float logit;
  int32_t id;
};

// The order of the filters: no two candidates are equal in it.
inline bool is_larger(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The id of row `row` of ChooseArgs, from the logits of some ids in ascending order. They include
// every id that has a mark and is not banned, and of the others the most_kept() (kernels/choice.h)
// largest ones, or by keeps_by_weight() all that have the least weight. The candidates are
// overwritten. `thread` is the one that calls.
int32_t choose_among(const ChooseArgs& args, int row, std::span<Candidate> candidates, Pool& pool,
                     int thread);

}  // namespace edgellm::cpu
