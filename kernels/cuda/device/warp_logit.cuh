// A logit of the head by one warp.
#pragma once

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/widen.cuh"

namespace edgellm::cuda {

// Of row v with y [w.cols]; every lane returns it. Lane l holds partial sums l, l + 32, ... of
// canonical_sum.
template <DenseType kType>
__device__ float any_logit(const DenseMatrix& w, int v, const float* y, int lane) {
  const size_t base = static_cast<size_t>(v) * static_cast<size_t>(w.cols);
  float p[8] = {};
  for (int begin = 0; begin < w.cols; begin += kPartials) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int c = begin + 32 * k + lane;
      if (c < w.cols) {
        p[k] = fmaf(widen(w.data, kType, base + static_cast<size_t>(c)), y[c], p[k]);
      }
    }
  }
  return fold_warp(((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))) + 0.0f;
}

// The same for rows of an even number of 16-bit values, two at a time: lane l holds partial sums
// 2 l, 2 l + 1, and those 64, 128, 192 further on.
template <DenseType kType>
__device__ float paired_logit(const DenseMatrix& w, int v, const float* y, int lane) {
  constexpr int kBatch = 3;  // of 256 columns, whose loads are in flight together
  const int half = w.cols / 2;
  const uint32_t* weights =
      static_cast<const uint32_t*>(w.data) + static_cast<size_t>(v) * static_cast<size_t>(half);
  const float2* activations = reinterpret_cast<const float2*>(y);
  float2 p[4] = {};
#pragma unroll 1
  for (int begin = 0; begin < half; begin += kBatch * kPartials / 2) {
    uint32_t weight[kBatch][4];
    float2 activation[kBatch][4];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int pair = begin + j * kPartials / 2 + 32 * k + lane;
        weight[j][k] = pair < half ? __ldg(weights + pair) : 0u;
        activation[j][k] = pair < half ? activations[pair] : make_float2(0.0f, 0.0f);
      }
    }
    // Steps beyond the row add 0 * 0: the canonical sum may have them.
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 wide = widen_pair<kType>(weight[j][k]);
        p[k].x = fmaf(wide.x, activation[j][k].x, p[k].x);
        p[k].y = fmaf(wide.y, activation[j][k].y, p[k].y);
      }
    }
  }
  const float even = fold_warp((p[0].x + p[2].x) + (p[1].x + p[3].x));
  const float odd = fold_warp((p[0].y + p[2].y) + (p[1].y + p[3].y));
  return (even + odd) + 0.0f;
}

}  // namespace edgellm::cuda
