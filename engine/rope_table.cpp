#include "engine/rope_table.h"

#include <algorithm>
#include <cmath>

namespace edgellm {

void RopeTable::grow(int positions) {
  if (positions <= positions_) return;
  // At least doubled: a long run then fills the table in a few steps.
  const int target = std::max(positions, 2 * positions_);
  const size_t half = inv_freq_.size();
  cosine_.resize(static_cast<size_t>(target) * half);
  sine_.resize(static_cast<size_t>(target) * half);
  for (int position = positions_; position < target; ++position) {
    const size_t row = static_cast<size_t>(position) * half;
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * inv_freq_[i];
      cosine_[row + i] =
          static_cast<float>(std::cos(static_cast<double>(angle))) * attention_factor_;
      sine_[row + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * attention_factor_;
    }
  }
  positions_ = target;
}

}  // namespace edgellm
