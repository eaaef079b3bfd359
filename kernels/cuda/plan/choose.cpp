#include "kernels/cuda/plan/choose.h"

namespace edgellm::cuda {
namespace {

ChoosePlan with_blocks(int rows, int vocab, int blocks, const DeviceTraits& device) {
  ChoosePlan plan;
  plan.blocks = blocks;
  const size_t values = sizeof(float) * static_cast<size_t>(choose_part(vocab, blocks));
  plan.cached = kBorderBytes + values <= device.max_dynamic_shared;
  plan.launch.blocks[0] = rows * blocks;
  plan.launch.threads = kChooseThreads;
  plan.launch.shared_bytes = kBorderBytes + (plan.cached ? values : 0);
  return plan;
}

}  // namespace

ChoosePlan pick_choose(int rows, int vocab, const DeviceTraits& device) {
  int blocks = 1;
  // As many as find an SM of their own.
  while (device.has_clusters && blocks < kClusterBlocks &&
         2 * blocks * rows <= device.multiprocessors) {
    blocks *= 2;
  }
  return with_blocks(rows, vocab, blocks, device);
}

ChoosePlan pick_choose_listed(int rows) {
  ChoosePlan plan;
  plan.launch.blocks[0] = rows;
  plan.launch.threads = kChooseThreads;
  plan.launch.shared_bytes = kBorderBytes + kMostListed * (sizeof(float) + sizeof(int32_t));
  return plan;
}

ChoosePlan pick_logprobs(int rows, int vocab, const DeviceTraits& device) {
  return with_blocks(rows, vocab, 1, device);
}

}  // namespace edgellm::cuda
