// Which kernels make the attention of a pass, and how they are launched.
//
//   rows                                       kernel
//   few, each with a long past                 attention_decode.cu: a context spreads over the GPU
//   many, alone in their sequences (decode)    attention_batch.cu
//   many, of one sequence (prefill)            attention_prefill.cu
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

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
  KvType type = KvType::kF16;
  int cache_chunks = 0;   // of a sequence in the KV cache
  int states_rows = 0;    // for which the workspace holds states of chunks
  int states_chunks = 0;  // for which it holds them

  int group() const { return heads / kv_heads; }
};

// Dimensions that the instances of a kernel have room for. A head takes the first that is enough.
inline constexpr int kHeadDims[] = {64, 128, 256};

// ---- Few rows: decode --------------------------------------------------------------------------

inline constexpr int kDecodeThreads = 256 + 32;  // the last warp serves the others

// Chunks that a block has in shared memory, at most: a thread sums two dimensions of one.
constexpr int decode_slots(int dims, int element_bytes) {
  return 2 * 256 / dims * 2 / element_bytes;
}

struct DecodePlan {
  int dims = 0;        // of kHeadDims
  bool exact = false;  // the head has exactly that many
  int slots = 0;       // decode_slots(), or half, a quarter, ... of it
  LaunchSize launch;
};

// ---- Many rows, alone in their sequences: batch ------------------------------------------------

// An instance of the kernel: `team` warps share a chunk, each with `queries` queries of its own.
struct BatchCut {
  int dims;  // of kHeadDims
  int element_bytes;
  int queries;
  int team;

  constexpr int team_threads() const { return 32 * team; }
  constexpr int block_queries() const { return queries * team; }
  // Positions whose keys or values fit into what a warp has of the shared memory.
  constexpr int staged() const { return dims * element_bytes <= 256 ? kAttentionChunk : 32; }
  // Keys, later values, later sums of a chunk; the weights of its positions; maximum and sum.
  constexpr int team_bytes() const {
    return staged() * dims * element_bytes +
           divide_up(block_queries() * (kAttentionChunk + 2) * 4, 16) * 16;
  }
  // Queries and the state after the rounds so far.
  constexpr int row_bytes() const {
    return divide_up(2 * block_queries() * (dims + 1) * 4, 16) * 16;
  }
  constexpr int shared_bytes(int teams) const { return teams * team_bytes() + row_bytes(); }
  // Blocks of four teams for which an SM of compute capability 9.0 has shared memory: 228 KiB, of
  // which a block takes 1 KiB more than it asks for.
  constexpr int max_blocks_per_sm() const {
    return 228 * 1024 / (divide_up(shared_bytes(4), 128) * 128 + 1024);
  }
  // A lane merges the chunk of each team. Teams of two warps: few enough to leave registers for the
  // blocks of the kernels around this one.
  constexpr int max_teams() const { return std::min(4 * max_blocks_per_sm(), team == 1 ? 32 : 8); }
};

struct BatchPlan {
  BatchCut cut{};
  bool exact = false;  // the head has exactly cut.dims dimensions
  int tile_heads = 0;  // query heads of a block
  LaunchSize launch;
};

// ---- Many rows of a sequence: prefill ----------------------------------------------------------

// An instance of the kernel: `queries` a warp, `staged` positions in shared memory at a time. The
// accumulators of a lane, the registers of an SM and the smallest shared memory (64 KiB, compute
// capability 7.5) allow no more.
struct PrefillCut {
  int dims;  // of kHeadDims
  int queries, staged, warps, blocks_per_sm;

  constexpr int threads() const { return 32 * warps; }
  constexpr int block_queries() const { return warps * queries; }
  // A stride that takes neighbouring queries to other banks, and one for neighbouring positions.
  constexpr int weight_stride() const { return kAttentionChunk + 4; }
  constexpr int key_stride() const { return dims + 4; }
  constexpr int stage_floats() const { return staged * key_stride(); }
  constexpr int query_floats() const { return block_queries() * dims; }
  constexpr int weight_floats() const { return block_queries() * weight_stride(); }
  constexpr int shared_bytes() const {
    return 4 * (stage_floats() + query_floats() + weight_floats());
  }
};
inline constexpr PrefillCut kPrefillCuts[] = {
    {64, 4, 64, 8, 2}, {128, 4, 64, 8, 2}, {256, 4, 32, 4, 2}};

struct PrefillPlan {
  int instance = 0;    // of kPrefillCuts
  int tile_rows = 0;   // of a block
  int tile_heads = 0;  // query heads of a block
  int multiprocessors = 0;
  LaunchSize launch;
};

// ---- The choice --------------------------------------------------------------------------------

// Decode takes all rows. Otherwise batch takes the decode rows and prefill the rest.
struct AttentionPlan {
  std::optional<DecodePlan> decode;
  std::optional<BatchPlan> batch;
  std::optional<PrefillPlan> prefill;
};

AttentionPlan pick_attention(const AttentionSize& size, const DeviceTraits& device);

// For all size.rows rows; size.decode_rows is not read.
BatchPlan pick_batch_attention(const AttentionSize& size, const DeviceTraits& device);
PrefillPlan pick_prefill_attention(const AttentionSize& size, const DeviceTraits& device);

}  // namespace edgellm::cuda
