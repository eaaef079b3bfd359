#include "kernels/cuda/plan/layer_end.h"

#include <algorithm>

namespace edgellm::cuda {
namespace {

// Up to this many rows the ops by themselves are faster (docs/ladder.md, "256 sequences").
constexpr int kFewRows = 32;

// Clusters of a block an SM that there is room for at once. They stay within a part of the GPU, so
// some SMs are left over.
int clusters_at_once(const DeviceTraits& device) {
  return device.multiprocessors / kClusterBlocks * 9 / 10;
}

// Whether a block's warps can take its share of each product, and its lanes the tokens.
bool fits(const LayerEndCut& cut, const DeviceTraits& device) {
  constexpr int kTokenTiles = kLayerEndTokens / 8;
  static_assert(kLayerEndWarps * LayerEndCut::kSumBytes >=
                kLayerEndTokens * (128 * kLayerEndGatedQuads + 4) * 4);
  static_assert(kLayerEndWarps / 8 <= 2 * kLayerEndGatedQuads);
  return std::max(cut.out_steps, cut.up_steps) <= 2 * kLayerEndQuads &&
         cut.tiles() >= kClusterBlocks && kTokenTiles * cut.own_tiles() <= kLayerEndWarps &&
         cut.down_steps >= kClusterBlocks && 8 * cut.own_steps() <= kLayerEndWarps &&
         static_cast<size_t>(cut.bytes()) <= device.max_dynamic_shared;
}

}  // namespace

std::optional<LayerEndPlan> pick_layer_end(const LayerEndSize& size, const DeviceTraits& device) {
  if (!device.has_clusters || !device.has_wgmma || size.has_ffn_sub_norm) return std::nullopt;
  if (size.q_dim % 64 != 0 || size.dim % 64 != 0 || size.ffn % 64 != 0) return std::nullopt;
  const LayerEndCut cut(size.q_dim, size.dim, size.ffn);
  const int clusters = divide_up(size.rows, kLayerEndTokens);
  if (size.rows <= kFewRows || clusters > clusters_at_once(device) || !fits(cut, device)) {
    return std::nullopt;
  }
  LayerEndPlan plan;
  plan.launch.blocks[0] = kClusterBlocks * clusters;
  plan.launch.threads = 32 * kLayerEndWarps;
  plan.launch.shared_bytes = static_cast<size_t>(cut.bytes());
  return plan;
}

}  // namespace edgellm::cuda
