// Which kernels make the attention of a pass, and how they are launched.
//
//   cache    rows                              kernel
//   codes    alone in their sequences          attention_decode.cu: a long context spreads over
//                                              the GPU
//   codes    of a prompt                       attention_code.cu, then attention_wgmma.cu where the
//                                              GPU has wgmma, else attention_prefill.cu
//   float32  any                               attention_float.cu
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/plan/device.h"
#include "kernels/ops.h"

namespace edgellm::cuda {

// What of a pass decides how its attention is launched.
struct AttentionSize {
  int rows = 0;
  int decode_rows = 0;  // AttentionArgs
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  KvType type = KvType::kI16;
  bool appends = true;    // keys and values of the pass come with it
  int decode_chunks = 0;  // of kIntegerChunk positions, of a decode row's context at most
  int states_rows = 0;    // for which the workspace holds states of chunks
  int states_chunks = 0;  // for which it holds them

  int group() const { return heads / kv_heads; }
};

// Dimensions that the instances of a kernel have room for. A head takes the first that is enough.
inline constexpr int kHeadDims[] = {64, 128, 256};

// ---- Codes, rows alone in their sequences: decode ----------------------------------------------

// Warps of a block. Where rows and heads make more blocks than there is room for at once, small
// blocks are faster for heads of few dimensions: twice as many share an SM, and in the products of
// the values no warp is idle.
inline constexpr int kDecodeWarps = 8;
inline constexpr int kFewDecodeWarps = 4;
inline constexpr int kFewDecodeSlabs = 2;  // of 32 dimensions, at most

// Blocks for which an SM has registers.
constexpr int decode_blocks_per_sm(int slabs, int warps) {
  return warps == kFewDecodeWarps ? 6 : slabs <= 4 ? 3 : 1;
}

// A context of at most kShortChunks chunks is short: a block, or a cluster of two, takes all of it
// at once for a row and a kv head.
inline constexpr int kShortChunks = 2;

// Where there is room for them at once, two to sixteen blocks of a cluster share a context of up to
// kLongClusterChunks chunks of a kv head with up to kClusterSlabs times 32 dimensions. Contexts of
// up to kClusterChunks have an instance that takes less shared memory.
inline constexpr int kClusterSlabs = 4;
inline constexpr int kClusterChunks = 8;
inline constexpr int kLongClusterChunks = 16;

// Chunks that the instance for contexts of so many has room for from other blocks than the first.
constexpr int sent_chunks(int decode_chunks) {
  return decode_chunks <= kShortChunks     ? kShortChunks - 1
         : decode_chunks <= kClusterChunks ? kClusterChunks - 1
                                           : kLongClusterChunks - 1;
}

// Shared memory of a block besides the tiles of the cache: units of `round` chunks, with many warps
// of as many that come, digits of queries, scores, weights; in a cluster the chunks `sent` to
// the first block.
constexpr int decode_extra_bytes(int dims, int columns, int round, int warps, int sent = 0) {
  const int heads = 4 * columns;
  const int scores = dims + 4 > round * 132 ? dims + 4 : round * 132;
  const bool is_small = warps == kFewDecodeWarps;
  const int units = (is_small ? 1536 : 3072) * round;
  const int weights = is_small ? 144 : round * 2 * heads * 144;
  const int sent_bytes = sent > 0 ? sent * 8 * (32 * warps + heads) + 16 : 0;
  return units + weights + 2 * heads * (dims + 16) + 4 * heads * (scores + 2 + 2 * round) + 64 +
         sent_bytes;
}

struct DecodePlan {
  int slabs = 0;    // of 32 dimensions, that the instance has room for: 1, 2, 3, 4 or 8
  int columns = 0;  // of a product, in eights: two digits of four heads each; 1 or 2
  int round = 0;    // chunks that a block works on at once: 1 or 2
  int slots = 0;    // tiles of the cache in shared memory: 8 of two chunks, 4 of one, or 2
  // Chunks that the other blocks of a cluster send to the first at most, and so the instance:
  // sent_chunks(); 0: no cluster. launch.blocks[0] blocks are one.
  int sent = 0;
  LaunchSize launch;  // of kDecodeWarps or kFewDecodeWarps
};

// ---- Codes, rows of prompts: prefill -----------------------------------------------------------

inline constexpr int kRowsCodedTogether = 16;

struct CodePlan {
  int dims = 0;           // of kHeadDims
  bool in_lanes = false;  // a warp has several rows at once: heads have `dims` dimensions
  LaunchSize launch;
};

// Queries of a block, sixteen a warp: fewer where wide heads leave less shared memory.
constexpr int prefill_queries(int dims) { return dims <= 128 ? 64 : 32; }
inline constexpr int kPrefillExtraBytes = 3072 + 64;

// Without wgmma.
struct PrefillPlan {
  int dims = 0;   // of kHeadDims
  int slots = 0;  // tiles of the cache in shared memory: 4 or 2
  LaunchSize launch;
};

// With wgmma: up to three warpgroups of 64 queries, and one that copies.
inline constexpr int kWgmmaStages = 2;  // chunks in shared memory
inline constexpr int kWgmmaExtraBytes = kWgmmaStages * 1536 + 256;
inline constexpr int kWgmmaMaxSlabs = 4;

constexpr int wgmma_shared_bytes(int slabs, int digits, int groups) {
  return kWgmmaStages * 4 * code_tile_bytes(32 * slabs, digits) +
         groups * 64 * query_code_bytes(32 * slabs) + kWgmmaExtraBytes + 1024;
}

struct WgmmaPlan {
  int slabs = 0;   // of 32 dimensions that a head has: 1 .. kWgmmaMaxSlabs
  int groups = 0;  // warpgroups with queries: 1, 2 or 3
  LaunchSize launch;
};

// ---- Float32 -----------------------------------------------------------------------------------

struct FloatPlan {
  LaunchSize launch;
};

// ---- The choice --------------------------------------------------------------------------------

// Codes: decode takes the decode rows, the others are coded and go to prefill. Float32: one kernel
// takes all rows.
struct AttentionPlan {
  std::optional<DecodePlan> decode;
  std::optional<CodePlan> code;
  std::optional<PrefillPlan> prefill;
  std::optional<WgmmaPlan> wgmma;  // in its place
  std::optional<FloatPlan> floats;
};

// Whether the device has the shared memory for heads of `head_dim` dimensions.
bool attention_fits(KvType type, int head_dim, const DeviceTraits& device);

AttentionPlan pick_attention(const AttentionSize& size, const DeviceTraits& device);

}  // namespace edgellm::cuda
