// How the choice of ids is launched: choose.cu, a cluster of blocks for each row where the device
// has clusters, else a block.
#pragma once

#include "kernels/cuda/plan/device.h"

namespace edgellm::cuda {

inline constexpr int kChooseThreads = 1024;

// Cells of the histogram in which the border of a filter is looked for, eleven bits of a logit's
// rank at a time; 64 bits each.
inline constexpr int kBorderBits = 11;
inline constexpr int kBorderCells = 1 << kBorderBits;
inline constexpr size_t kBorderBytes = 8 * static_cast<size_t>(kBorderCells);

struct ChoosePlan {
  int blocks = 1;  // of a row: 1, 2, 4 or 8
  // The adjusted logits of a block's part of the row wait in shared memory.
  bool cached = false;
  LaunchSize launch;
};

// Ids of a block's part of the row: whole warps of them for each warp.
EDGELLM_HOST_DEVICE constexpr int choose_part(int vocab, int blocks) {
  return divide_up(divide_up(vocab, blocks), kChooseThreads) * kChooseThreads;
}

ChoosePlan pick_choose(int rows, int vocab, const DeviceTraits& device);

// Log-probabilities: a block a row.
ChoosePlan pick_logprobs(int rows, int vocab, const DeviceTraits& device);

}  // namespace edgellm::cuda
