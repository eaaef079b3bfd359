// Which kernel makes a ternary product (qkv, attn_out, ffn_up, ffn_down), and how it is launched.
//
//   rows of activations   kernel
//   1                     gemv.cu: one kernel for rows whose share of a thread fits into registers,
//                         one for any length that fits into shared memory
//   2 to 32               gemm_skinny.cu, on devices with clusters, where it is the fastest
//   9 and more            gemm_wgmma.cu, on devices with wgmma, where it is the fastest: one launch
//                         quantises, a second multiplies
//   the rest              gemm.cu: the same
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <variant>

#include "kernels/canonical.h"
#include "kernels/cuda/plan/device.h"

namespace edgellm::cuda {

// What of a product decides how it is launched.
struct LinearSize {
  int rows = 0;  // of activations
  int cols = 0;
  int pairs = 0;  // of weight rows (linear_ops.cuh)
  bool has_gain = false;
  bool aligned = true;  // activations and gain start at multiples of 16 bytes
  // The next kernel is ffn_up, which needs room for many blocks.
  bool before_ffn_up = false;
};

// 32-bit words of a weight row in the GPU's own order (cuda.h), whole 16-byte loads.
EDGELLM_HOST_DEVICE constexpr int words_per_row(int cols) { return divide_up(cols, 64) * 4; }

// ---- One row: GEMV ---------------------------------------------------------------------------

inline constexpr int kMaxGemvWarps = 15;  // that multiply; with the service warp 16

// An instance of the kernel for short rows. All loops over these are unrolled.
struct ShortGemv {
  int steps;  // words of a weight row that a lane holds
  int pairs;  // of weight rows of a warp
  int quads;  // fours of columns that a thread quantises
};
inline constexpr ShortGemv kShortGemvs[] = {{2, 1, 1}, {2, 2, 1}, {3, 1, 2}, {3, 2, 2}, {5, 1, 2},
                                            {5, 2, 3}, {5, 4, 2}, {8, 1, 4}, {8, 2, 4}, {14, 1, 6}};
inline constexpr int kNumShortGemvs = static_cast<int>(std::size(kShortGemvs));

// Weights of long rows wait in shared memory, those of others in registers.
EDGELLM_HOST_DEVICE constexpr bool short_gemv_shares_weights(int steps) { return steps > 8; }

struct ShortGemvPlan {
  int instance = 0;  // of kShortGemvs
  int warps = 0;     // that multiply; one more serves them
  LaunchSize launch;
};

// How a block of the kernel for rows of any length shares its work.
struct GemvCut {
  int warps = 0;           // that multiply; one more serves them
  int pairs_per_warp = 0;  // at most 32: lane i stores pair i; a multiple of `pairs_at_once`
};
struct LongGemvPlan {
  GemvCut cut;
  int pairs_at_once = 0;  // 1 or 2, that a warp multiplies together
  bool by_fours = false;  // columns are read 16 bytes at a time
  LaunchSize launch;
};

// ---- Tiles on the tensor cores -----------------------------------------------------------------

// What the sums of an activation row ("token") are scaled with.
struct RowScale {
  int32_t sum;  // of the codes
  float s;      // codes per unit
  float r;      // RMS factor of a folded norm, 1 where there is none
};

// How the tile of a block is cut. A warp makes row_tiles x 16 weight rows by token_tiles x 8
// tokens; warps_k warps share a tile along K. Shared memory holds `stages` K steps of
// `steps` x 64 columns.
struct TernaryCut {
  int row_tiles, token_tiles, warps_m, warps_n, warps_k, steps, stages;

  constexpr int threads() const { return 32 * warps_m * warps_n * warps_k; }
  constexpr int rows() const { return 16 * row_tiles * warps_m; }
  constexpr int pairs() const { return rows() / 2; }
  constexpr int tokens() const { return 8 * token_tiles * warps_n; }
  // A stage: `steps` planes of weights, [row][16 bytes], then `steps` planes of activations,
  // [token][64 bytes]. A plane is padded so that the copies of neighbouring steps meet other banks.
  // Reads need no padding: a warp's are 128 neighbouring bytes (weights) or the same for every
  // eight lanes (activations).
  constexpr int weight_plane() const { return 16 * rows() + 16; }
  constexpr int code_plane() const { return 64 * tokens() + 64; }
  constexpr int stage_bytes() const {
    return divide_up(steps * (weight_plane() + code_plane()), 128) * 128;
  }
  // The tile of sums, [K warp][token][row]. It takes the place of the stages; the padding spreads a
  // warp's writes over all banks.
  constexpr int sum_stride() const { return rows() + 4; }
  constexpr int sum_bytes() const { return warps_k * tokens() * sum_stride() * 4; }
  constexpr int tile_bytes() const {
    return stages * stage_bytes() > sum_bytes() ? stages * stage_bytes() : sum_bytes();
  }
  // The scales of the tokens follow.
  constexpr int shared_bytes() const {
    return tile_bytes() + tokens() * static_cast<int>(sizeof(RowScale));
  }
};

// ---- Two and more rows: skinny GEMM -------------------------------------------------------------

inline constexpr int kSkinnyRows = 32;  // of activations, for which it is considered

// K steps of 64 columns of a block of the cluster, at most.
EDGELLM_HOST_DEVICE constexpr int skinny_steps(int row_words) {
  return divide_up(row_words / 4, kClusterBlocks);
}

// The weight rows of a cluster, a warp for each block of it, by its tokens; a step at a time.
constexpr TernaryCut skinny_cut(int row_tiles, int token_tiles) {
  return {row_tiles, token_tiles, kClusterBlocks, 1, 1, 1, 1};
}

// The kernel for rows of some length. One that took short and long rows would be slower at both: it
// would be longer, and so would fetching its instructions.
struct SkinnyKind {
  int quads;  // fours of columns of a row that a lane quantises, at most
  // Where there is a norm: whether one cluster more makes the RMS factors and tells them to the
  // others. Otherwise each cluster makes its own; for that, rows have kShortColumns at most.
  bool tells;
};
inline constexpr SkinnyKind kSkinnyKinds[] = {{3, false}, {3, true}, {7, true}, {9, true}};
inline constexpr int kNumSkinnyKinds = static_cast<int>(std::size(kSkinnyKinds));
inline constexpr int kShortSquares = 4;  // columns of a token whose squares a lane adds up
inline constexpr int kShortColumns = kShortSquares * kPartials;

// Weights, codes and gains of a block; sums of products from all blocks, and those of squares.
constexpr size_t skinny_bytes(const TernaryCut& cut, int steps, bool tells) {
  const int partials = tells ? 0 : kPartials;
  return static_cast<size_t>(steps) *
             static_cast<size_t>(cut.weight_plane() + cut.code_plane() + 64 * 4) +
         static_cast<size_t>(cut.tokens() * (cut.rows() + partials) * 4);
}

// Of 8 tokens, of a cluster.
inline constexpr int kSkinnyTokenTiles[] = {1, 2};

struct SkinnyPlan {
  int row_tiles = 0;    // 2 or 4: a warp multiplies that many tiles of 16 weight rows
  int token_tiles = 0;  // of kSkinnyTokenTiles
  int kind = 0;         // of kSkinnyKinds
  LaunchSize launch;    // row j of the grid: the j-th group of tokens
};

// ---- Many rows: GEMM ---------------------------------------------------------------------------

// Named by weight rows and tokens. Warps of small tiles share them along K.
enum class GemmTile { k32x8, k32x16, k32x32, k64x32, k64x64, k128x64, k128x128 };
inline constexpr TernaryCut kGemmTiles[] = {
    {2, 1, 1, 1, 8, 8, 4}, {2, 2, 1, 1, 8, 8, 4}, {2, 4, 1, 1, 8, 8, 4}, {2, 4, 2, 1, 4, 4, 4},
    {2, 4, 2, 2, 2, 4, 4}, {2, 4, 4, 2, 1, 2, 4}, {4, 8, 2, 2, 1, 2, 4}};
inline constexpr int kNumGemmTiles = static_cast<int>(std::size(kGemmTiles));
constexpr const TernaryCut& cut_of(GemmTile tile) { return kGemmTiles[static_cast<int>(tile)]; }

// Loads of four columns that a thread of the quantising kernel keeps, at most.
inline constexpr int kKeptLoads[] = {3, 7, 12, 28};
inline constexpr int kNumKeptLoads = static_cast<int>(std::size(kKeptLoads));
// Threads for a row: many where the time of one row counts, few where there are many rows.
inline constexpr int kQuantiseThreads = 64;
inline constexpr int kWideQuantiseThreads = 256;
inline constexpr int kNumWideNormLoads = 2;  // of kKeptLoads, with many threads and a norm

struct QuantisePlan {
  int kept = 0;           // of kKeptLoads
  bool by_fours = false;  // columns are read 16 bytes at a time
  // Whether blocks of the product may start, and fetch weights, before the kernel before has ended.
  // Large ones would crowd on the SMs that are free first.
  bool early = true;
  LaunchSize launch;
};

struct GemmPlan {
  QuantisePlan quantise;
  GemmTile tile = GemmTile::k32x8;
  LaunchSize launch;
};

// ---- Many rows on GPUs with wgmma: GEMM of warpgroups -------------------------------------------

inline constexpr int kBlockColumns = 128;  // of a stage
inline constexpr int kWeightChunk = 4;     // blocks of columns whose weights come together
inline constexpr int kWeightChunkBytes = kWeightChunk * 16 * kBlockColumns / 4;  // of a warp

// How the tile of a block is cut. A warpgroup makes 64 weight rows by all tokens of the tile.
// Shared memory holds `stages` of kBlockColumns columns of the tokens, and `slots` chunks of
// weights for each warp.
struct WgmmaCut {
  int groups, tokens, stages, slots;
  int blocks;     // of an SM, at most: one multiplies while another stores
  int max_parts;  // blocks of a cluster that may share the columns: 1, 2, 4 or 8
  // Nanoseconds on an H200: of a block of columns where an SM has one tile, and its share of an SM
  // that has several; of the rest of a tile.
  int latency_ns, work_ns, rest_ns;

  constexpr int threads() const { return 128 * groups; }
  constexpr int pairs() const { return 32 * groups; }
  constexpr int stage_bytes() const { return kBlockColumns * tokens; }
  // Stages start at a multiple of 1024 bytes, which the swizzle counts from.
  constexpr int shared_bytes() const {
    return stages * stage_bytes() + 4 * groups * slots * kWeightChunkBytes + 1024;
  }
  // Sums that a block receives where there are several parts.
  constexpr int part_sum_bytes() const { return 64 * groups * tokens * 4; }
};
inline constexpr WgmmaCut kWgmmaTiles[] = {
    {1, 32, 8, 4, 3, 4, 250, 110, 3500},  {1, 64, 4, 4, 3, 8, 270, 140, 3400},
    {2, 64, 4, 4, 2, 1, 325, 260, 3200},  {2, 96, 4, 2, 2, 1, 320, 330, 6000},
    {2, 128, 4, 2, 2, 1, 400, 420, 4000}, {3, 128, 8, 2, 1, 1, 500, 660, 6000}};
inline constexpr int kNumWgmmaTiles = static_cast<int>(std::size(kWgmmaTiles));

struct WgmmaGemmPlan {
  QuantisePlan quantise;
  int tile = 0;   // of kWgmmaTiles
  int parts = 1;  // blocks that share the columns of a tile
  LaunchSize launch;
};

// ---- The choice --------------------------------------------------------------------------------

using LinearPlan = std::variant<ShortGemvPlan, LongGemvPlan, SkinnyPlan, GemmPlan, WgmmaGemmPlan>;

LinearPlan pick_linear(const LinearSize& size, const DeviceTraits& device);

// The choice among the kernels for several rows, which take one row as well.
LinearPlan pick_linear_rows(const LinearSize& size, const DeviceTraits& device);

// By clusters that take 8 token_tiles tokens; none where the device or the sizes are not for it.
std::optional<SkinnyPlan> skinny_plan(int token_tiles, const LinearSize& size,
                                      const DeviceTraits& device);

// With a tile of kWgmmaTiles, for devices with wgmma.
WgmmaGemmPlan wgmma_gemm_plan(int tile, int parts, const LinearSize& size,
                              const DeviceTraits& device);

}  // namespace edgellm::cuda
