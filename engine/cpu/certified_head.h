// The certified head that greedy steps, and those of rules that keep few ids, read on the CPU,
// built once it pays.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/cpu/head_codes.h"
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

namespace edgellm {

class LazyCertifiedHead {
 public:
  // Rows of such steps that the full head serves before the certified head is built. Building,
  // most of which is the system's clearing of fresh memory, takes as long as about 20 certified
  // steps save (docs/numerics.md). So a run of a few tokens loses nothing, and a run of any
  // other length loses little against the better choice for its length.
  static constexpr int kRowsBefore = 16;

  // `w` must outlive this object. Not `wanted`, or a head that is too wide: never built.
  LazyCertifiedHead(const DenseMatrix& w, bool wanted)
      : w_(w), wanted_(wanted && w.cols <= kMaxCertifiedCols) {}

  // Called for every such step, which has `rows` rows; null where the full head serves the step.
  const CertifiedHead* next_step(int rows, cpu::Pool& pool);

  size_t bytes() const { return built() ? codes_bytes() + bounds_bytes() : 0; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };

  bool built() const { return memory_ != nullptr; }
  size_t codes_bytes() const { return static_cast<size_t>(w_.rows) * cpu::head_row_bytes(w_.cols); }
  size_t bounds_bytes() const { return static_cast<size_t>(w_.rows) * sizeof(CertifiedRow); }

  DenseMatrix w_;
  bool wanted_;
  int rows_ = 0;  // so far, until it is built
  std::unique_ptr<std::byte, Free> memory_;
  CertifiedHead head_;
};

}  // namespace edgellm
