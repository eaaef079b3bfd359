// Which kernels make the logits or the exact arg-max of the head, and how they are launched.
//
//   head            head_logits.cu: norm, then logits; many rows of states by a head with few
//                   columns: head_logits_tile.cu
//   certified head  head_certified.cu: norm and steps; bounds of all logits, up to four rows with
//                   dp2a, more on the tensor cores (head_certified_rows.cu); rescoring, or for
//                   choices among few ids head_candidates.cu
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <variant>

#include "kernels/cuda/plan/device.h"
#include "kernels/ops.h"

namespace edgellm::cuda {

// What of a head decides how it is launched.
struct HeadSize {
  int rows = 0;
  int vocab = 0;
  int cols = 0;
  DenseType type = DenseType::kF32;
};

// ---- Logits ------------------------------------------------------------------------------------

inline constexpr int kLogitRows = 4;    // of the head, that a warp takes at once where it can
inline constexpr int kLogitTokens = 4;  // rows of states, that it takes at once of several
inline constexpr int kLogitStages = 5;  // of 256 columns, that are on their way for those

// Tiles of whole rows of the head and states in shared memory, 16-bit and float32 values.
inline constexpr int kLogitTileRows = 64;
inline constexpr int kLogitTileTokens = 64;
inline constexpr int kLogitTileThreads = 512;
inline constexpr int kMaxLogitTileColumns = 767;
constexpr size_t logit_tile_bytes(int cols) {
  return static_cast<size_t>(cols) * (2 * kLogitTileRows + 4 * kLogitTileTokens);
}

struct LogitsPlan {
  bool tiled = false;  // kLogitRows at once; else one
  // Warps of a block that share rows of the head, each for kLogitTokens rows of states: 1, 2, 4 or
  // 8. 0: a block has one row of states.
  int token_warps = 0;
  bool whole_rows = false;  // head_logits_tile.cu
  LaunchSize norm;
  LaunchSize launch;
};

LogitsPlan pick_logits(const HeadSize& size, const DeviceTraits& device);

// ---- Certified head ----------------------------------------------------------------------------

// Bounds with dp2a. A lane keeps kBoundLoads loads of 16 bytes of each of kBoundRows rows in
// flight. 24 warps of them are 120 kB an SM, three times what the latency of the memory needs.
inline constexpr int kBoundRows = 2;
inline constexpr int kBoundLoads = 5;
inline constexpr int kBoundTokens = 4;  // rows of steps that share one reading of the codes
inline constexpr int kBoundGroups[] = {8, 16, 32};

struct BoundsPlan {
  int group = 0;   // of kBoundGroups: lanes that share kBoundRows rows of the head
  int tokens = 0;  // 1 or kBoundTokens
  LaunchSize launch;

  int groups() const { return launch.blocks[0] * (launch.threads / 32); }
};

// Blocks of 256 threads an SM: 85 registers a thread, or 128 for several rows of steps.
constexpr int bounds_blocks_per_sm(int tokens) { return tokens == 1 ? 3 : 2; }

// Columns of a stage of the bounds on the tensor cores: whole 128-byte lines of codes.
inline constexpr int kDigitColumns = 128;

// How the tile of a block is cut. A warp makes row_tiles x 16 head rows by token_tiles x 8 tokens;
// the warps_m x warps_n warps of a block share its rows and tokens out. Shared memory holds
// `stages` stages, and an SM blocks_per_sm blocks.
struct DigitCut {
  int row_tiles, token_tiles, warps_m, warps_n, stages, blocks_per_sm;

  constexpr int threads() const { return 32 * warps_m * warps_n; }
  constexpr int warp_rows() const { return 16 * row_tiles; }
  constexpr int rows() const { return warp_rows() * warps_m; }
  constexpr int tokens() const { return 8 * token_tiles * warps_n; }
  // A stage: codes [row], high digits [token], low digits [token], each kDigitColumns bytes.
  constexpr int high_digits() const { return rows() * kDigitColumns; }
  constexpr int low_digits() const { return high_digits() + tokens() * kDigitColumns; }
  constexpr int stage_bytes() const { return low_digits() + tokens() * kDigitColumns; }
  constexpr int shared_bytes() const { return stages * stage_bytes(); }
};

// Few tokens: the codes stream, and 64 kB an SM or more of them are in flight. Four blocks of 128
// rows an SM are two rounds of a large vocabulary on an H200. Many tokens: the larger the tile of a
// warp, the less shared memory a product reads; two blocks an SM leave registers for 32 x 32. The
// tiles of 16 and 32 fit where a block has 64 kB of shared memory.
enum class DigitTile { k8Tokens, k16Tokens, k32Tokens, k64Tokens };
inline constexpr DigitCut kDigitTiles[] = {
    {1, 1, 8, 1, 3, 4}, {2, 2, 4, 1, 2, 4}, {2, 4, 4, 1, 2, 4}, {2, 4, 4, 2, 3, 2}};
inline constexpr int kNumDigitTiles = static_cast<int>(std::size(kDigitTiles));
constexpr const DigitCut& cut_of(DigitTile tile) { return kDigitTiles[static_cast<int>(tile)]; }

struct DigitBoundsPlan {
  DigitTile tile = DigitTile::k8Tokens;
  int token_tiles = 0;
  int groups = 0;
  LaunchSize launch;
};

// For choices by rules, each warp that makes bounds leaves the largest lower one of its rows of the
// head: the `groups` of a plan are those warps. At most so many a row of states:
inline constexpr int kMostBoundBlocks = 1024;  // of BoundsPlan
constexpr int max_bound_groups(int vocab) {
  const int most_warps = 8 * std::min(divide_up(vocab, 8 * kBoundRows), kMostBoundBlocks);
  return std::max(divide_up(vocab, 16), most_warps);
}

// Upper bounds that a thread of the rescoring kernel looks through. Few rows: few enough that the
// candidates of a large vocabulary spread over all SMs. Many rows make enough blocks, and most find
// no candidate.
inline constexpr int kScansOfFew = 4;
inline constexpr int kScansOfMany = 16;

struct CertifiedPlan {
  LaunchSize steps;
  std::variant<BoundsPlan, DigitBoundsPlan> bounds;
  int scans = 0;  // kScansOfFew or kScansOfMany
  LaunchSize rescore;
  LaunchSize least;  // for choices: what the kept logits of each row reach

  int groups() const;

  // The steps are digits for the tensor cores.
  bool has_digits() const { return std::holds_alternative<DigitBoundsPlan>(bounds); }
};

CertifiedPlan pick_certified(const HeadSize& size, const DeviceTraits& device);

// The most ids that a choice from the certified head should keep, for any number of rows: half as
// many as there are groups. With more, what the kept logits reach is the bound of a poor group, and
// most of the vocabulary reaches that.
int most_kept_by_bounds(HeadSize size, const DeviceTraits& device);

}  // namespace edgellm::cuda
