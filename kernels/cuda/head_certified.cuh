// What certified_head (head_certified.cu) shares with its bounds on the tensor cores
// (head_certified_rows.cu).
#pragma once

#include "kernels/cuda/cuda.h"

namespace edgellm::cuda {

__device__ inline bool is_banned(const HeadArgs& args, int id) {
  for (int b = 0; b < args.n_banned; ++b) {
    if (args.banned[b] == id) return true;
  }
  return false;
}

// The tensor cores take a step as two digits: step = 256 * high_digit + low_digit. A row of
// `Workspace::steps` is then the high digits, int8 [pitch], followed by the low ones, uint8
// [pitch].
__device__ inline int8_t high_digit(int step) { return static_cast<int8_t>(step >> 8); }
__device__ inline uint8_t low_digit(int step) { return static_cast<uint8_t>(step & 255); }

}  // namespace edgellm::cuda
