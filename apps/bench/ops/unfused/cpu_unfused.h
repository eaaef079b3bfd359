// The ternary products of a layer as an engine without fusion would run them on the CPU. The fused
// ops are compared with them. The norm, the quantisation, every matrix, RoPE of q and of k, the
// activation and the addition are a parallel loop each.
//
// Args, arithmetic and bits are those of the fused ops (kernels/ops.h), and so are the inner loops
// of the instruction set. Values that are not finite are not reported.
#pragma once

#include <vector>

#include "kernels/cpu/pool.h"
#include "kernels/cpu/primitives.h"
#include "kernels/ops.h"

namespace edgellm::bench {

class CpuUnfused {
 public:
  // For passes of at most `rows` rows; `widest` is the largest of dim, heads * head_dim and ffn.
  CpuUnfused(cpu::Pool& pool, int rows, int widest);

  void qkv(const QkvArgs& args);
  void project(const ProjectArgs& args);
  void ffn_up(const FfnUpArgs& args);

 private:
  void norm(const float* x, const float* gain, float eps, int cols, int rows);
  void quantise(const float* y, int cols, int rows);
  void quantise_normed(const float* x, const float* gain, float eps, int cols, int rows);
  void product(const TernaryMatrix& w, int rows, float* out);

  cpu::Pool& pool_;
  std::vector<float> normed_;  // [rows, widest] x * gain
  std::vector<float> rms_;     // [rows]
  std::vector<int8_t> codes_;
  std::vector<int32_t> sum_;
  std::vector<float> s_;
  std::vector<float> r_;
  std::vector<float> first_;   // [rows, widest] of a matrix
  std::vector<float> second_;  // [rows, widest] of the second matrix
  cpu::QuantisedRows quantised_;
};

}  // namespace edgellm::bench
