#include "kernels/cuda/plan/head.h"

#include <algorithm>

#include "kernels/canonical.h"
#include "kernels/cuda/plan/choose.h"

namespace edgellm::cuda {
namespace {

constexpr int kBlockThreads = kPartials;  // a thread for each partial sum of canonical_sum
constexpr int kBlockWarps = kBlockThreads / 32;

// A block of the usual size for each row.
LaunchSize block_for_each(int rows) {
  LaunchSize launch;
  launch.blocks[0] = rows;
  launch.threads = kBlockThreads;
  return launch;
}

size_t step_bytes(const HeadSize& size, int tokens) {
  return static_cast<size_t>(tokens) * CertifiedHead::pitch_of(size.cols) * sizeof(int16_t);
}

BoundsPlan pick_bounds(const HeadSize& size, int tokens, const DeviceTraits& device) {
  BoundsPlan plan;
  plan.tokens = tokens;
  // As few lanes a row as cover it with one round of loads.
  const size_t chunks = CertifiedHead::pitch_of(size.cols) / 16;
  plan.group = kBoundGroups[2];
  for (int i = 1; i >= 0; --i) {
    if (chunks <= static_cast<size_t>(kBoundGroups[i] * kBoundLoads)) plan.group = kBoundGroups[i];
  }
  const int tiles = divide_up(size.vocab, kBoundRows * (32 / plan.group));
  plan.launch.blocks[0] =
      std::min({divide_up(tiles, kBlockWarps),
                device.multiprocessors * bounds_blocks_per_sm(tokens), kMostBoundBlocks});
  plan.launch.blocks[1] = divide_up(size.rows, tokens);
  plan.launch.threads = kBlockThreads;
  plan.launch.shared_bytes = step_bytes(size, tokens);
  return plan;
}

DigitTile tile_for(int rows, const DeviceTraits& device) {
  const auto fits = [&](DigitTile tile) {
    return static_cast<size_t>(cut_of(tile).shared_bytes()) <= device.max_dynamic_shared;
  };
  if (rows <= cut_of(DigitTile::k8Tokens).tokens() && fits(DigitTile::k8Tokens)) {
    return DigitTile::k8Tokens;
  }
  if (rows <= cut_of(DigitTile::k16Tokens).tokens()) return DigitTile::k16Tokens;
  if (rows > cut_of(DigitTile::k32Tokens).tokens() && fits(DigitTile::k64Tokens)) {
    return DigitTile::k64Tokens;
  }
  return DigitTile::k32Tokens;
}

DigitBoundsPlan pick_digit_bounds(const HeadSize& size, const DeviceTraits& device) {
  DigitBoundsPlan plan;
  plan.tile = tile_for(size.rows, device);
  const DigitCut& cut = cut_of(plan.tile);
  plan.token_tiles = divide_up(size.rows, cut.tokens());
  plan.groups = divide_up(size.vocab, cut.warp_rows());
  plan.launch.blocks[0] = plan.token_tiles * divide_up(size.vocab, cut.rows());
  plan.launch.threads = cut.threads();
  plan.launch.shared_bytes = static_cast<size_t>(cut.shared_bytes());
  return plan;
}

}  // namespace

// The states of a block whose warps have `token_warps` times kLogitTokens of them, and the rows of
// the head that are on their way.
size_t token_logits_bytes(int token_warps, size_t row_bytes) {
  const int tile_rows = kBlockWarps / token_warps * kLogitRows;
  return static_cast<size_t>(token_warps * kLogitTokens) * row_bytes +
         static_cast<size_t>(kLogitStages * tile_rows * kPartials) * sizeof(uint16_t);
}

// LogitsPlan::token_warps: for as many rows of states as there are, or as many as shared memory
// holds.
int token_warps_for(const HeadSize& size, size_t row_bytes, const DeviceTraits& device) {
  if (size.rows == 1 || size.cols % 8 != 0) return 0;
  int warps = kBlockWarps;
  while (warps > 1 && warps / 2 * kLogitTokens >= size.rows) warps /= 2;
  while (warps > 0 && token_logits_bytes(warps, row_bytes) > device.max_dynamic_shared) warps /= 2;
  return warps;
}

LogitsPlan pick_logits(const HeadSize& size, const DeviceTraits& device) {
  LogitsPlan plan;
  plan.norm = block_for_each(size.rows);
  plan.tiled = size.type != DenseType::kF32 && size.cols % 2 == 0;
  const int rows_of_block = kBlockWarps * (plan.tiled ? kLogitRows : 1);
  plan.launch.blocks[0] =
      std::min(divide_up(size.vocab, rows_of_block), device.multiprocessors * 3);
  plan.launch.blocks[1] = size.rows;
  plan.launch.threads = kBlockThreads;
  const size_t row_bytes =
      static_cast<size_t>(divide_up(size.cols, kPartials) * kPartials) * sizeof(float);
  plan.launch.shared_bytes = row_bytes;
  if (!plan.tiled) return plan;
  // From more than half a tile of states on: their tiles take less than half of the time.
  if (size.rows > kLogitTileTokens / 2 && size.cols % 8 == 0 && size.cols <= kMaxLogitTileColumns &&
      logit_tile_bytes(size.cols) <= device.max_dynamic_shared) {
    plan.whole_rows = true;
    plan.launch.blocks[0] = divide_up(size.rows, kLogitTileTokens);
    plan.launch.blocks[1] = std::min(divide_up(size.vocab, kLogitTileRows),
                                     std::max(1, device.multiprocessors / plan.launch.blocks[0]));
    plan.launch.threads = kLogitTileThreads;
    plan.launch.shared_bytes = logit_tile_bytes(size.cols);
    return plan;
  }
  plan.token_warps = token_warps_for(size, row_bytes, device);
  if (plan.token_warps == 0) return plan;
  // A block for each SM, which has registers for no more.
  const int groups = divide_up(size.rows, plan.token_warps * kLogitTokens);
  plan.launch.blocks[0] = groups;
  plan.launch.blocks[1] =
      std::min(divide_up(size.vocab, kLogitRows * (kBlockWarps / plan.token_warps)),
               std::max(1, device.multiprocessors / groups));
  plan.launch.shared_bytes = token_logits_bytes(plan.token_warps, row_bytes);
  return plan;
}

int CertifiedPlan::groups() const {
  if (const auto* digits = std::get_if<DigitBoundsPlan>(&bounds)) return digits->groups;
  return std::get<BoundsPlan>(bounds).groups();
}

CertifiedPlan pick_certified(const HeadSize& size, const DeviceTraits& device) {
  CertifiedPlan plan;
  plan.steps = block_for_each(size.rows);
  if (size.rows > kBoundTokens) {
    plan.bounds = pick_digit_bounds(size, device);
  } else {
    // Several rows share one reading of the codes where their steps fit into shared memory.
    const bool shares =
        size.rows > 1 && step_bytes(size, kBoundTokens) <= device.max_dynamic_shared;
    plan.bounds = pick_bounds(size, shares ? kBoundTokens : 1, device);
  }
  plan.scans = size.rows > kMaxInlineRows ? kScansOfMany : kScansOfFew;
  plan.rescore.blocks[0] = divide_up(size.vocab, plan.scans * kBlockThreads);
  plan.rescore.blocks[1] = size.rows;
  plan.rescore.threads = kBlockThreads;
  plan.least.blocks[0] = size.rows;
  plan.least.threads = kChooseThreads;
  plan.least.shared_bytes = kBorderBytes;
  return plan;
}

int most_kept_by_bounds(HeadSize size, const DeviceTraits& device) {
  int groups = size.vocab;
  // A number of rows for each kind of plan.
  for (const int rows : {1, kBoundTokens, 8, 16, 32, 64}) {
    size.rows = rows;
    groups = std::min(groups, pick_certified(size, device).groups());
  }
  return groups / 2;
}

}  // namespace edgellm::cuda
