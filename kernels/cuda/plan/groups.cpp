#include "kernels/cuda/plan/groups.h"

#include <algorithm>

namespace edgellm::cuda {
namespace {

LaunchSize code_launch(int rows) {
  constexpr int kFewRows = 64;
  LaunchSize launch;
  launch.blocks[0] = rows;
  launch.threads = rows <= kFewRows ? kWideCodeThreads : kPartials;
  return launch;
}

// Microseconds on an H200 for 4,096 columns, for each wave of blocks. A wave of the GEMM takes less
// where an SM has one block.
double tile_time(const LaunchSize& launch, const DeviceTraits& device) {
  return 20.0 *
         divide_up(launch.blocks[0] * launch.blocks[1], kGroupBlocks * device.multiprocessors);
}
double gemm_time(const LaunchSize& launch, const DeviceTraits& device) {
  const int blocks = launch.blocks[0] * launch.blocks[1];
  if (blocks <= device.multiprocessors) return 53.0;
  return 77.0 * divide_up(blocks, kGroupBlocks * device.multiprocessors);
}

}  // namespace

GroupPlan pick_groups(const LinearSize& size, const DeviceTraits& device) {
  GroupGemvPlan plan;
  plan.launch.shared_bytes = group_gemv_bytes(group_count(size.cols), size.rows);
  if (size.rows > kGroupGemvRows || plan.launch.shared_bytes > device.max_dynamic_shared) {
    const GroupPlan tile = pick_group_tile(size, device);
    const GroupPlan gemm = pick_group_gemm(size, device);
    const auto* many = std::get_if<GroupGemmPlan>(&gemm);
    if (many == nullptr) return tile;
    return gemm_time(many->launch, device) < tile_time(std::get<GroupTilePlan>(tile).launch, device)
               ? gemm
               : tile;
  }
  if (size.rows > 1) plan.code = code_launch(size.rows);
  plan.launch.threads = kGroupGemvThreads;
  plan.launch.blocks[0] =
      std::min(kGroupBlocks * device.multiprocessors, divide_up(size.pairs, kGroupGemvPairs));
  return plan;
}

GroupPlan pick_group_tile(const LinearSize& size, const DeviceTraits&) {
  GroupTilePlan plan;
  while (plan.tile + 1 < kNumGroupTiles && kGroupTiles[plan.tile].tokens() < size.rows) ++plan.tile;
  const GroupTile& tile = kGroupTiles[plan.tile];
  plan.code = code_launch(size.rows);
  plan.launch.blocks[0] = divide_up(size.pairs, kGroupTilePairs);
  plan.launch.blocks[1] = divide_up(size.rows, tile.tokens());
  plan.launch.threads = kPartials;
  plan.launch.shared_bytes = static_cast<size_t>(tile.shared_bytes());
  return plan;
}

GroupPlan pick_group_gemm(const LinearSize& size, const DeviceTraits& device) {
  GroupGemmPlan plan;
  plan.launch.shared_bytes = static_cast<size_t>(kGroupStages) * kGroupStageBytes;
  if (plan.launch.shared_bytes > device.max_dynamic_shared) return pick_group_tile(size, device);
  plan.code = code_launch(size.rows);
  plan.launch.blocks[0] = divide_up(size.pairs, kGroupGemmPairs);
  plan.launch.blocks[1] = divide_up(size.rows, kGroupGemmTokens);
  plan.launch.threads = kPartials;
  return plan;
}

}  // namespace edgellm::cuda
