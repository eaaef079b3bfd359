// The CUDA backend: the ops of kernels/ops.h, launched on a stream. The bits are those of `ref`.
//
// All pointers in the args are device pointers (row lists, ids and places included). Ternary codes
// are in the GPU's own order, which repack() makes. `rows` and the grid are fixed by the args;
// everything that changes from step to step is read from device memory, so a captured launch can be
// replayed.
#pragma once

#include <cuda_runtime.h>

#include "kernels/certified_head.h"
#include "kernels/ops.h"

namespace edgellm::cuda {

// Rows of codes start at multiples of 16 bytes.
inline size_t ternary_pitch(int cols) { return (static_cast<size_t>(cols) + 63) / 64 * 16; }

// Turns rows of the file's codes (TernaryMatrix), which lie at a pitch of ternary_pitch(cols) bytes
// with zero padding, into the GPU's order, in place. A 32-bit word holds 16 columns in both; here
// bits 2f, 2f + 1 of byte b hold w + 1 for column 4 f + b, so that one mask leaves four
// neighbouring weights in the four bytes of a word. Adds the number of invalid codes (10) to
// *invalid.
void repack(uint8_t* codes, int rows, int cols, int32_t* invalid, cudaStream_t stream);

// Eight lanes share the score of a position: lane t sums dimensions t, t + 8, ... A head whose
// dimensions they share evenly keeps each lane's together. Element of a tile of keys (KvCache);
// values are [position, head_dim].
inline constexpr int kKeyLanes = 8;
EDGELLM_HOST_DEVICE inline int key_index(int position, int d, int head_dim) {
  const int within =
      head_dim % kKeyLanes == 0 ? d % kKeyLanes * (head_dim / kKeyLanes) + d / kKeyLanes : d;
  return position % kAttentionChunk * head_dim + within;
}
EDGELLM_HOST_DEVICE inline int value_index(int position, int d, int head_dim) {
  return position % kAttentionChunk * head_dim + d;
}

// Columns of a ternary matrix: sums of 2^16 products of a weight code, 64 times too large
// (ternary_tile.cuh), and an int8 stay below 2^31.
inline constexpr int kMaxColumns = 1 << 16;

// Dimensions of a head that the attention kernels have room for.
inline constexpr int kMaxHeadDim = 256;

// Rows of a pass whose chunks attention shares out over blocks, at most. Steps of so few are
// captured for each number of rows.
inline constexpr int kMaxInlineRows = 8;

// Floats that the attention of a chunk leaves for one head: o[head_dim], maximum, sum; whole
// 16-byte words.
inline int attention_state(int head_dim) { return (head_dim + 5) / 4 * 4; }

// Device memory that the ops use between and inside launches.
struct Workspace {
  int8_t* codes = nullptr;              // [max_rows, quantised_row_bytes(widest input)]
  float* row_s = nullptr;               // [max_rows]
  float* row_r = nullptr;               // [max_rows]
  int32_t* row_sum = nullptr;           // [max_rows]
  float* attention = nullptr;           // [attention_rows, heads, chunks, attention_state()]
  int32_t* attention_done = nullptr;    // [attention_rows, kv heads], zero between launches
  unsigned long long* best = nullptr;   // [max output rows] arg-max in progress
  int32_t* head_done = nullptr;         // [1], zero between launches
  int max_chunks = 0;                   // of the context
  int attention_rows = kMaxInlineRows;  // at most that; more rows do not share their chunks out
  // The greedy head's, for its output rows. Steps of many rows are digits (greedy_head.cuh).
  int16_t* steps = nullptr;       // [rows, CompressedHead::pitch_of(dim)]
  HiddenBound* hidden = nullptr;  // [rows]
  uint32_t* lower = nullptr;      // [rows], zero between launches
  int32_t* rescored = nullptr;    // [rows], zero between launches
};

inline size_t quantised_row_bytes(int cols) { return (static_cast<size_t>(cols) + 63) / 64 * 64; }

// What the certified head did for a row of decode steps.
struct RescoredTotals {
  int64_t steps;
  int64_t rescored;  // rows of the vocabulary, in all steps
  int32_t most;      // in one step
};

// The end of a decode step: the chosen ids become the inputs of the next one, and the host gets
// them. Nothing here needs the host, so a captured step can be replayed as it is.
struct FeedArgs {
  const int32_t* argmax = nullptr;    // [rows], -1 where every id was banned
  const uint32_t* n_used = nullptr;   // rows that count; the others fill the pass up and stay
  int32_t* ids = nullptr;             // [rows] out: argmax, 0 for -1 (such a row ends there)
  int32_t* positions = nullptr;       // [rows] in and out: one more
  int32_t* fault = nullptr;           // in: of this step; out: 0
  uint32_t* step = nullptr;           // in: number of this step; out: one more
  uint64_t* ring = nullptr;           // [kRingSteps, ring_rows] out, memory of the host
  const int32_t* rescored = nullptr;  // [rows] by the certified head; null: the full head ran
  RescoredTotals* totals = nullptr;   // [rows] in and out: this step added
  int rows = 0;
  int ring_rows = 0;
};

// Row r of step n is told by word [n % kRingSteps][r] of the ring: the upper half is n, the lower
// half what feed_word() makes of id and fault. One store writes the word, so a host that sees the
// step's number has the value too.
inline constexpr uint32_t kRingSteps = 4;  // two steps are under way at most
EDGELLM_HOST_DEVICE inline uint64_t feed_word(uint32_t step, int32_t id, int32_t fault) {
  const int32_t value = fault != 0 ? -1 - fault : id;
  return static_cast<uint64_t>(step) << 32 | static_cast<uint32_t>(value);
}
inline uint32_t feed_step(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
inline int32_t feed_value(uint64_t word) {
  return static_cast<int32_t>(static_cast<uint32_t>(word));
}
// Of a feed_value(): the fault that the step met, 0 for none (the value is then the id).
inline int32_t feed_fault(int32_t value) { return value < -1 ? -1 - value : 0; }

// Throws Error (kDevice) where this program holds no code for the current GPU.
void require_code();

void embed(const EmbedArgs& args, cudaStream_t stream);
void qkv(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream);
void attention(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream);
void attn_out(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream);
void ffn_up(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream);
void ffn_down(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream);
void head(const HeadArgs& args, const Workspace& workspace, cudaStream_t stream);
void greedy_head(const GreedyHeadArgs& args, const Workspace& workspace, cudaStream_t stream);
void feed(const FeedArgs& args, cudaStream_t stream);

// Builds the compressed copy of `w`, at most kMaxCompressedCols columns: codes [rows, pitch],
// 16-aligned, and row_bounds [rows].
void compress_head(const DenseMatrix& w, int8_t* codes, CompressedRow* row_bounds,
                   cudaStream_t stream);

}  // namespace edgellm::cuda
