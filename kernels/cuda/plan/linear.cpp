#include "kernels/cuda/plan/linear.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace edgellm::cuda {
namespace {

// ---- One row -----------------------------------------------------------------------------------

// Fewer warps leave registers for the blocks of the next kernels.
constexpr int kPreferredWarps = 10;

// The row's codes and its values times gain, then the weights of every warp's rows.
size_t long_gemv_bytes(int cols, const GemvCut& cut) {
  const size_t words = static_cast<size_t>(words_per_row(cols));
  return 16 * words + 64 * words + 8 * words * static_cast<size_t>(cut.warps * cut.pairs_per_warp);
}

// One block for each SM as far as shared memory goes, with warps enough to quantise the row.
GemvCut cut_for(const LinearSize& size, const DeviceTraits& device) {
  const auto fits = [&](const GemvCut& cut) {
    return long_gemv_bytes(size.cols, cut) <= device.max_dynamic_shared;
  };
  const int per_block = divide_up(size.pairs, device.multiprocessors);
  const int warps_of_quads = divide_up(size.cols / 4, 32);
  GemvCut cut;
  cut.pairs_per_warp = std::min(32, divide_up(per_block, kPreferredWarps));
  if (cut.pairs_per_warp > 1) cut.pairs_per_warp += cut.pairs_per_warp % 2;
  cut.warps = divide_up(per_block, cut.pairs_per_warp);
  cut.warps = std::max(cut.warps, std::min(warps_of_quads, kPreferredWarps));
  cut.warps = std::min(cut.warps, kMaxGemvWarps);
  while (!fits(cut) && cut.pairs_per_warp > 2) cut.pairs_per_warp -= 2;
  while (!fits(cut) && cut.warps > 1) --cut.warps;
  return cut;
}

LongGemvPlan pick_long_gemv(const LinearSize& size, const DeviceTraits& device) {
  LongGemvPlan plan;
  plan.cut = cut_for(size, device);
  plan.by_fours = size.cols % 4 == 0;
  plan.pairs_at_once = plan.by_fours && plan.cut.pairs_per_warp > 1 ? 2 : 1;
  plan.launch.blocks[0] = divide_up(size.pairs, plan.cut.warps * plan.cut.pairs_per_warp);
  plan.launch.threads = (plan.cut.warps + 1) * 32;
  plan.launch.shared_bytes = long_gemv_bytes(size.cols, plan.cut);
  return plan;
}

// The instance of the kernel for short rows; none where the row is too long or no multiple of 4.
std::optional<int> short_gemv_for(const LinearSize& size, const DeviceTraits& device) {
  if (size.cols % 4 != 0) return std::nullopt;
  const int steps = divide_up(words_per_row(size.cols), 32);
  const int pairs_of_sm = divide_up(size.pairs, device.multiprocessors);
  // Two pairs a warp: few threads leave registers to the blocks of the next kernels.
  int pairs = pairs_of_sm > 10 ? 2 : 1;
  if (steps > 3 && steps <= 5 && pairs_of_sm > 2 * kMaxGemvWarps) pairs = 4;
  if (steps > 8) pairs = 1;
  for (int i = 0; i < kNumShortGemvs; ++i) {
    if (steps <= kShortGemvs[i].steps && pairs == kShortGemvs[i].pairs) return i;
  }
  return std::nullopt;
}

// None where the weights and gains of its warps do not fit into shared memory.
std::optional<ShortGemvPlan> pick_short_gemv(const LinearSize& size, const DeviceTraits& device) {
  const std::optional<int> instance = short_gemv_for(size, device);
  if (!instance) return std::nullopt;
  const ShortGemv& kernel = kShortGemvs[*instance];
  const int words = words_per_row(size.cols);
  // One block for each SM, with warps enough to quantise the row.
  const int to_fill = divide_up(size.pairs, device.multiprocessors * kernel.pairs);
  const int to_quantise = divide_up(words * 4, 32 * kernel.quads);
  // With the service warp a multiple of four: an SM gives out registers for four warps at a time.
  int warps = std::min(kMaxGemvWarps, std::max(to_fill, to_quantise) | 3);
  const int gains_of_warp = size.has_gain ? 32 * kernel.quads : 0;
  const int weights_of_warp =
      short_gemv_shares_weights(kernel.steps) ? 2 * kernel.pairs * (words / 4) : 0;
  const auto bytes = [&] {
    return 16 * static_cast<size_t>(words + warps * (gains_of_warp + weights_of_warp));
  };
  while (bytes() > device.max_dynamic_shared && warps - 4 >= to_quantise) warps -= 4;
  if (bytes() > device.max_dynamic_shared) return std::nullopt;
  ShortGemvPlan plan;
  plan.instance = *instance;
  plan.warps = warps;
  plan.launch.blocks[0] = divide_up(size.pairs, warps * kernel.pairs);
  plan.launch.threads = (warps + 1) * 32;
  plan.launch.shared_bytes = bytes();
  return plan;
}

// The GEMVs need room for the weights of at least one warp. Longer rows are the GEMM's.
bool gemv_takes(const LinearSize& size, const DeviceTraits& device) {
  return size.rows == 1 && long_gemv_bytes(size.cols, {1, 2}) <= device.max_dynamic_shared;
}

// Up to this many rows, blocks of wgmma start as early as there is room for one of them, and may
// share the columns of a tile; the tiles of single warps are left to devices without wgmma.
constexpr int kFewRows = 64;

// Pairs that make enough tiles for a large GPU.
constexpr int kManyPairs = 1536;

// Rows that many threads each normalise and quantise.
constexpr int kWideNormRows = 256;

// ---- Several rows ------------------------------------------------------------------------------

// The largest tile of which there are enough to keep the SMs of a large GPU busy (measured on one
// of 132; docs/ladder.md). Where shared memory is small, one that fits.
GemmTile tile_for(const LinearSize& size, const DeviceTraits& device) {
  const auto fills = [&](GemmTile tile, int blocks) {
    const TernaryCut& cut = cut_of(tile);
    return divide_up(size.pairs, cut.pairs()) * divide_up(size.rows, cut.tokens()) >= blocks &&
           static_cast<size_t>(cut.shared_bytes()) <= device.max_dynamic_shared;
  };
  const bool many_pairs = size.pairs >= kManyPairs;
  if (size.rows <= 8) return GemmTile::k32x8;
  if (size.rows <= 16) return GemmTile::k32x16;
  if (many_pairs && size.cols >= 2048 && fills(GemmTile::k128x128, 200)) return GemmTile::k128x128;
  if (many_pairs && fills(GemmTile::k128x64, 190)) return GemmTile::k128x64;
  if (size.rows > 32 && fills(GemmTile::k64x64, 140)) return GemmTile::k64x64;
  if (fills(GemmTile::k64x32, 110) || !fills(GemmTile::k32x32, 0)) return GemmTile::k64x32;
  return GemmTile::k32x32;
}

QuantisePlan pick_quantise(const LinearSize& size) {
  QuantisePlan plan;
  plan.by_fours = size.cols % 4 == 0 && size.aligned;
  const bool is_wide = size.has_gain ? size.rows <= kWideNormRows : size.cols > 12 * kPartials;
  plan.launch.threads = is_wide ? kWideQuantiseThreads : kQuantiseThreads;
  const int most = is_wide && size.has_gain ? kNumWideNormLoads : kNumKeptLoads;
  plan.kept = kKeptLoads[most - 1];
  for (int i = most - 2; i >= 0; --i) {
    if (size.cols <= 4 * plan.launch.threads * kKeptLoads[i]) plan.kept = kKeptLoads[i];
  }
  plan.launch.blocks[0] = size.rows;
  return plan;
}

GemmPlan pick_gemm(const LinearSize& size, const DeviceTraits& device) {
  GemmPlan plan;
  plan.quantise = pick_quantise(size);
  plan.tile = tile_for(size, device);
  const TernaryCut& cut = cut_of(plan.tile);
  plan.launch.blocks[0] = divide_up(size.pairs, cut.pairs());
  plan.launch.blocks[1] = divide_up(size.rows, cut.tokens());
  plan.launch.threads = cut.threads();
  plan.launch.shared_bytes = static_cast<size_t>(cut.shared_bytes());
  return plan;
}

// ---- Estimates ---------------------------------------------------------------------------------
//
// Nanoseconds on an H200, fitted to BitNet-2B's, Llama3-8B's and SmolLM-135M's products of 9 to 64
// rows; those of tiles of warpgroups to 512 rows as well. They only have to tell which kernel is
// the faster one.

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t quantise_ns(const LinearSize& size) { return 2000 + size.cols * 17 / 100; }

int64_t estimated_ns(const GemmPlan&, const LinearSize& size) {
  const int64_t products = int64_t{size.rows} * size.pairs * size.cols;
  return quantise_ns(size) + 2500 + size.cols * 13 / 10 + products * 14 / 1000000;
}

int64_t estimated_ns(const SkinnyPlan& plan, const LinearSize& size, const DeviceTraits& device) {
  const int steps = skinny_steps(words_per_row(size.cols));
  const int clusters = divide_up(size.pairs, skinny_cut(plan.row_tiles, plan.token_tiles).pairs()) *
                       plan.launch.blocks[1];
  const size_t block_bytes = plan.launch.shared_bytes + kReservedShared;
  const size_t sm_bytes = device.max_dynamic_shared + kMostStaticShared;
  const int per_sm = static_cast<int>(std::min<size_t>(sm_bytes / block_bytes, 3));
  // Clusters stay within a part of the GPU, so some SMs are left over.
  const int at_once = std::max(1, device.multiprocessors * per_sm / kClusterBlocks * 9 / 10);
  const bool is_narrow = plan.token_tiles == 1;
  const int64_t wave_ns = is_narrow ? 2000 + 170 * steps : 3650 + 450 * steps;
  const int64_t cluster_ns = is_narrow ? 70 + 12 * steps : 50 + 7 * steps;
  return wave_ns * divide_up(clusters, at_once) + cluster_ns * clusters * plan.row_tiles / 2;
}

// The last tiles of an SM may be fewer than it has room for.
int64_t estimated_ns(const WgmmaGemmPlan& plan, const LinearSize& size,
                     const DeviceTraits& device) {
  const WgmmaCut& cut = kWgmmaTiles[plan.tile];
  const int column_blocks = divide_up(divide_up(size.cols, kBlockColumns), plan.parts);
  int64_t ns = quantise_ns(size);
  int left = divide_up(plan.launch.blocks[0] * plan.launch.blocks[1], device.multiprocessors);
  for (; left > 0; left -= cut.blocks) {
    const int together = std::min(left, cut.blocks);
    ns += int64_t{column_blocks} * std::max(cut.latency_ns, together * cut.work_ns) + cut.rest_ns;
  }
  return ns;
}

// As many parts as give each SM two blocks at most, and each block some columns.
int parts_for(const WgmmaCut& cut, const LinearSize& size, const DeviceTraits& device) {
  const int tiles = divide_up(size.rows, cut.tokens) * divide_up(size.pairs, cut.pairs());
  const int most = std::min(cut.max_parts, divide_up(size.cols, kBlockColumns));
  if (!device.has_clusters) return 1;
  int parts = 1;
  while (2 * parts <= most && parts * tiles <= device.multiprocessors) parts *= 2;
  return parts;
}

// Clusters of twice as many tokens where there are more blocks than SMs, and these clusters take
// all tokens: the blocks of ffn_up find room earlier, which saves more time than the product loses.
LinearPlan leaving_room(const LinearPlan& plan, const LinearSize& size,
                        const DeviceTraits& device) {
  const SkinnyPlan* const skinny = std::get_if<SkinnyPlan>(&plan);
  if (skinny == nullptr || skinny->token_tiles != 1) return plan;
  if (skinny->launch.blocks[0] * skinny->launch.blocks[1] <= device.multiprocessors) return plan;
  const std::optional<SkinnyPlan> wide = skinny_plan(2, size, device);
  return wide && wide->launch.blocks[1] == 1 ? LinearPlan(*wide) : plan;
}

}  // namespace

std::optional<SkinnyPlan> skinny_plan(int token_tiles, const LinearSize& size,
                                      const DeviceTraits& device) {
  const bool by_fours = size.cols % 4 == 0 && size.aligned;
  if (!by_fours || !device.has_clusters) return std::nullopt;
  const int steps = skinny_steps(words_per_row(size.cols));
  const int needed = (steps + 1) / 2;  // a lane has 4 of 128 columns
  SkinnyPlan plan;
  plan.token_tiles = token_tiles;
  const auto takes = [&](const SkinnyKind& kind) {
    return needed <= kind.quads && (kind.tells || !size.has_gain || size.cols <= kShortColumns);
  };
  while (!takes(kSkinnyKinds[plan.kind])) {
    if (++plan.kind == kNumSkinnyKinds) return std::nullopt;
  }
  const bool tells = kSkinnyKinds[plan.kind].tells;
  // More weight rows a block where there would be more than two blocks for an SM.
  plan.row_tiles = size.pairs > 16 * 2 * device.multiprocessors ? 4 : 2;
  const TernaryCut cut = skinny_cut(plan.row_tiles, token_tiles);
  plan.launch.shared_bytes = skinny_bytes(cut, steps, tells);
  if (plan.launch.shared_bytes > device.max_dynamic_shared) return std::nullopt;
  const int clusters = divide_up(size.pairs, cut.pairs()) + (tells && size.has_gain ? 1 : 0);
  plan.launch.blocks[0] = kClusterBlocks * clusters;
  plan.launch.blocks[1] = divide_up(size.rows, cut.tokens());
  plan.launch.threads = cut.threads();
  return plan;
}

WgmmaGemmPlan wgmma_gemm_plan(int tile, int parts, const LinearSize& size,
                              const DeviceTraits& device) {
  const WgmmaCut& cut = kWgmmaTiles[tile];
  WgmmaGemmPlan plan;
  plan.quantise = pick_quantise(size);
  plan.quantise.early = size.rows <= kFewRows;
  plan.tile = tile;
  plan.parts = parts;
  plan.launch.blocks[0] = parts * divide_up(size.rows, cut.tokens);
  plan.launch.blocks[1] = divide_up(size.pairs, cut.pairs());
  plan.launch.threads = cut.threads();
  plan.launch.shared_bytes = static_cast<size_t>(cut.shared_bytes());
  if (parts > 1) plan.launch.shared_bytes += static_cast<size_t>(cut.part_sum_bytes());
  if (plan.quantise.early) return plan;
  // Blocks that come while the kernel before still has some crowd on the SMs that are already free.
  // Each takes so much memory that an SM has no room for more than its share.
  const int per_sm =
      divide_up(plan.launch.blocks[0] * plan.launch.blocks[1], device.multiprocessors);
  const size_t others = kMostStaticShared + kReservedShared;
  const size_t share =
      (device.max_dynamic_shared + others) / static_cast<size_t>(std::min(per_sm, cut.blocks)) -
      others;
  plan.launch.shared_bytes = std::max(plan.launch.shared_bytes, share);
  return plan;
}

LinearPlan pick_linear_rows(const LinearSize& size, const DeviceTraits& device) {
  if (size.rows >= 2 && size.rows <= 8) {
    if (const auto skinny = skinny_plan(1, size, device)) return *skinny;
  }
  // Among many rows the tiles of single warps win where a product is short: they leave room on an
  // SM for blocks of the kernel behind them, which then starts earlier. With many pairs the
  // smallest tile of a warpgroup is faster still. Estimates are of products by themselves
  // (docs/ladder.md, "nine to 64 sequences" and "256 sequences").
  constexpr int64_t kShortProduct = 300'000'000;  // multiplications
  const int64_t products = int64_t{size.rows} * size.pairs * size.cols;
  const bool is_few = size.rows <= kFewRows;
  if (size.rows <= 8) return pick_gemm(size, device);
  if (!is_few && products < kShortProduct) {
    if (device.has_wgmma && size.pairs >= kManyPairs) return wgmma_gemm_plan(0, 1, size, device);
    return pick_gemm(size, device);
  }
  LinearPlan best = pick_gemm(size, device);
  int64_t best_ns =
      is_few && !device.has_wgmma ? estimated_ns(std::get<GemmPlan>(best), size) : kNever;
  const auto consider = [&](const LinearPlan& plan, int64_t ns) {
    if (ns < best_ns) {
      best = plan;
      best_ns = ns;
    }
  };
  for (const int token_tiles : kSkinnyTokenTiles) {
    if (size.rows > kSkinnyRows) break;
    const auto skinny = skinny_plan(token_tiles, size, device);
    if (skinny) consider(*skinny, estimated_ns(*skinny, size, device));
  }
  for (int tile = 0; device.has_wgmma && tile < kNumWgmmaTiles; ++tile) {
    const int parts = is_few ? parts_for(kWgmmaTiles[tile], size, device) : 1;
    const WgmmaGemmPlan plan = wgmma_gemm_plan(tile, parts, size, device);
    consider(plan, estimated_ns(plan, size, device));
  }
  return size.before_ffn_up ? leaving_room(best, size, device) : best;
}

LinearPlan pick_linear(const LinearSize& size, const DeviceTraits& device) {
  if (!gemv_takes(size, device)) return pick_linear_rows(size, device);
  if (const auto short_gemv = pick_short_gemv(size, device)) return *short_gemv;
  return pick_long_gemv(size, device);
}

}  // namespace edgellm::cuda
