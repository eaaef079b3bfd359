// Percentiles of any number of latencies in fixed memory, each within one part in 64.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace edgellm {

class LatencyHistogram {
 public:
  void add(int64_t ns) {
    ++cells_[cell_of(static_cast<uint64_t>(std::max<int64_t>(ns, 0)))];
    ++count_;
  }
  int64_t count() const { return count_; }

  // Nearest rank, as statistics.h has it: the largest value of the cell of the latency that at
  // least `percent` per cent (1 to 100) do not exceed. 0 where there is none.
  int64_t percentile(int percent) const {
    const int64_t rank = (count_ * percent + 99) / 100;
    int64_t seen = 0;
    for (size_t cell = 0; cell < cells_.size() && rank > 0; ++cell) {
      seen += cells_[cell];
      if (seen >= rank) return static_cast<int64_t>(last_of(cell));
    }
    return 0;
  }

 private:
  // A cell for each value below 64, then 64 for each power of two.
  static constexpr int kBits = 6;
  static constexpr size_t kCells = (64 - kBits) << kBits;

  static size_t cell_of(uint64_t value) {
    const int shift = std::max(static_cast<int>(std::bit_width(value)) - kBits - 1, 0);
    return (static_cast<size_t>(shift) << kBits) + static_cast<size_t>(value >> shift);
  }
  static uint64_t last_of(size_t cell) {
    if (cell < (size_t{2} << kBits)) return cell;
    const size_t shift = (cell >> kBits) - 1;
    const uint64_t upper = cell - (shift << kBits);
    return ((upper + 1) << shift) - 1;
  }

  std::array<int64_t, kCells> cells_{};
  int64_t count_ = 0;
};

}  // namespace edgellm
