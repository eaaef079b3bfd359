// The CUDA backend: the ops of kernels/ops.h, launched on a stream. The bits are those of `ref`.
//
// All pointers in the args are device pointers (row lists, ids and places included). Ternary codes
// are in the GPU's own order, which repack() makes. `rows` and the grid are fixed by the args;
// everything that changes from step to step is read from device memory, so a captured launch can be
// replayed.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace edgellm::cuda {

// Rows of codes start at multiples of 16 bytes.
inline size_t ternary_pitch(int cols) { return (static_cast<size_t>(cols) + 63) / 64 * 16; }

// Turns rows of the file's codes (TernaryMatrix), which lie at a pitch of ternary_pitch(cols) bytes
// with zero padding, into the GPU's order, in place. A 32-bit word holds 16 columns in both; here
// bits 2f, 2f + 1 of byte b hold w + 1 for column 4 f + b, so that one mask leaves four neighbouring
// weights in the four bytes of a word. Adds the number of invalid codes (10) to *invalid.
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

// Rows up to this many are quantised by every block that needs them; more, once beforehand.
inline constexpr int kMaxInlineRows = 8;

// Floats that the attention of a chunk leaves for one head: o[head_dim], maximum, sum; whole
// 16-byte words.
inline int attention_state(int head_dim) { return (head_dim + 5) / 4 * 4; }

// Device memory that the ops use between and inside launches.
struct Workspace {
  int8_t* codes = nullptr;             // [max_rows, quantised_row_bytes(widest input)]
  float* row_s = nullptr;              // [max_rows]
  float* row_r = nullptr;              // [max_rows]
  int32_t* row_sum = nullptr;          // [max_rows]
  float* attention = nullptr;          // [kMaxInlineRows, heads, chunks, attention_state()]
  int32_t* attention_done = nullptr;   // [kMaxInlineRows, heads], zero between launches
  unsigned long long* best = nullptr;  // [max output rows] arg-max in progress
  int32_t* head_done = nullptr;        // [1], zero between launches
  int max_chunks = 0;                  // of the context
};

inline size_t quantised_row_bytes(int cols) { return (static_cast<size_t>(cols) + 63) / 64 * 64; }

void embed(const EmbedArgs& args, cudaStream_t stream);
void qkv(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream);
void attention(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream);
void attn_out(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream);
void ffn_up(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream);
void ffn_down(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream);
void head(const HeadArgs& args, const Workspace& workspace, cudaStream_t stream);

}  // namespace edgellm::cuda
