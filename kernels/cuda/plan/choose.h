// How the choice of ids is launched: choose.cu, a cluster of blocks for each row where the device
// has clusters, else a block. Among few ids that are listed, a block.
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

// A row of bits, one for each id.
EDGELLM_HOST_DEVICE constexpr int listed_words(int vocab) { return divide_up(vocab, 32); }

// Ids with set bits that a block chooses from in shared memory; where there are more, it looks
// through the whole row.
inline constexpr int kMostListed = 4096;

ChoosePlan pick_choose(int rows, int vocab, const DeviceTraits& device);

// Among listed ids: a block a row.
ChoosePlan pick_choose_listed(int rows);

// Log-probabilities: a block a row.
ChoosePlan pick_logprobs(int rows, int vocab, const DeviceTraits& device);

}  // namespace edgellm::cuda
