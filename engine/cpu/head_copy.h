// The compressed copy of the head that greedy steps read on the CPU, built once it pays.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

namespace edgellm {

class HeadCopy {
 public:
  // Rows of greedy steps that the full head serves before the copy is built. Building, most of it
  // the system's clearing of fresh memory, takes what the copy saves in about 20 steps
  // (docs/performance.md): a run of a few tokens then spends nothing, and none spends much more
  // than it would have had to, however long it turns out to be.
  static constexpr int kRowsBefore = 16;

  // `w` must outlive the copy. Not `wanted`, or a head too wide for one: never built.
  HeadCopy(const DenseMatrix& w, bool wanted)
      : w_(w), wanted_(wanted && w.cols <= kMaxCompressedCols) {}

  // Called for every greedy step, of so many rows; null where the step is the full head's.
  const CompressedHead* next_step(int rows, cpu::Pool& pool);

  size_t bytes() const { return built() ? codes_bytes() + bounds_bytes() : 0; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };

  bool built() const { return memory_ != nullptr; }
  size_t codes_bytes() const {
    return static_cast<size_t>(w_.rows) * CompressedHead::pitch_of(w_.cols);
  }
  size_t bounds_bytes() const { return static_cast<size_t>(w_.rows) * sizeof(CompressedRow); }

  DenseMatrix w_;
  bool wanted_;
  int rows_ = 0;  // so far, until the copy is built
  std::unique_ptr<std::byte, Free> memory_;
  CompressedHead copy_;
};

}  // namespace edgellm
