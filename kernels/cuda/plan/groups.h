// Which kernel makes a ternary product of rows in groups (Activations::kInt16Group), and how it is
// launched (groups_ops.cuh).
//
//   rows of activations   kernel
//   1 to 4                GEMV, where a block has room for the rows' digits
//   more                  tiles whose warps share the groups out, or a GEMM whose warps share the
//                         tile out: what takes less time on an H200
// A launch before the product codes the rows, unless there is one: a GEMV codes it itself.
#pragma once

#include <variant>

#include "kernels/cuda/plan/linear.h"

namespace edgellm::cuda {

// Blocks of an SM: kernels have no more registers than leaves room for.
inline constexpr int kGroupBlocks = 2;

// Threads that code a row, where there are few rows.
inline constexpr int kWideCodeThreads = 1024;

// ---- Few rows: GEMV ----------------------------------------------------------------------------

// The tensor cores multiply 16 weight rows with 8 columns: the two digits of four tokens.
inline constexpr int kGroupGemvRows = 4;
inline constexpr int kGroupGemvPairs = 8;  // of weight rows, of a tile
// Groups of a tile that a warp multiplies at once, and the warps of a block: a slab.
inline constexpr int kWarpGroups = 4;
inline constexpr int kSlabGroups = 8 * kWarpGroups;
inline constexpr int kGroupGemvThreads = 9 * 32;  // one warp adds what eight multiply

struct GroupGemvPlan {
  LaunchSize code;  // no threads: the product codes the row itself
  LaunchSize launch;
};

// Digits, a unit and a sum for each group of each row; products of two slabs.
constexpr size_t group_gemv_bytes(int groups, int rows) {
  return static_cast<size_t>(groups) * static_cast<size_t>(rows) * (2 * kScaleGroup + 8) + 16 +
         2 * kSlabGroups * 32 * 16;
}

// ---- Tiles -------------------------------------------------------------------------------------

// A block makes the products of 16 pairs of weight rows with 8 token_tiles tokens. Its warps share
// the groups out, a slab of 8 warp_groups at a time.
struct GroupTile {
  int token_tiles, warp_groups;

  constexpr int tokens() const { return 8 * token_tiles; }
  constexpr int slab() const { return 8 * warp_groups; }
  // Products of a slab, and the scales of its rows.
  constexpr int shared_bytes() const { return 4 * 32 * (slab() * tokens() + slab() + 1); }
};
inline constexpr int kGroupTilePairs = 16;
inline constexpr GroupTile kGroupTiles[] = {{1, 4}, {2, 2}, {4, 1}};
inline constexpr int kNumGroupTiles = static_cast<int>(std::size(kGroupTiles));

struct GroupTilePlan {
  int tile = 0;  // of kGroupTiles
  LaunchSize code;
  LaunchSize launch;
};

// ---- Many rows: GEMM ---------------------------------------------------------------------------

// The tile of a block. Shared memory holds kGroupStages groups of its weights, digits, units and
// sums.
inline constexpr int kGroupGemmPairs = 64;
inline constexpr int kGroupGemmTokens = 64;
inline constexpr int kGroupStages = 4;
inline constexpr int kGroupStageBytes =
    2 * kGroupGemmPairs * 32 + kGroupGemmTokens * (2 * kScaleGroup + 8);

struct GroupGemmPlan {
  LaunchSize code;
  LaunchSize launch;
};

// ---- The choice --------------------------------------------------------------------------------

using GroupPlan = std::variant<GroupGemvPlan, GroupTilePlan, GroupGemmPlan>;

GroupPlan pick_groups(const LinearSize& size, const DeviceTraits& device);

// Tiles, which take any number of rows.
GroupPlan pick_group_tile(const LinearSize& size, const DeviceTraits& device);
// The GEMM, which takes any number of rows; tiles where a block has no room for its stages.
GroupPlan pick_group_gemm(const LinearSize& size, const DeviceTraits& device);

}  // namespace edgellm::cuda
