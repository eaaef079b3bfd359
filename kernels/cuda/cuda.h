// The CUDA backend: the ops of kernels/ops.h, launched on a stream. The bits are those of `ref`.
//
// All pointers in the args are device pointers (row lists, ids and places included). Ternary codes
// are in the GPU's own order, which repack() makes. `rows` and the grid are fixed by the args;
// everything that changes from step to step is read from device memory, so a captured launch can be
// replayed.
#pragma once

#include <cuda_runtime.h>

#include "kernels/certified_head.h"
#include "kernels/cuda/plan/device.h"
#include "kernels/ops.h"

namespace edgellm::cuda {

// Rows of codes start at multiples of 16 bytes.
EDGELLM_HOST_DEVICE inline size_t ternary_pitch(int cols) {
  return (static_cast<size_t>(cols) + 63) / 64 * 16;
}

// Turns rows of the file's codes (TernaryMatrix), which lie at a pitch of ternary_pitch(cols) bytes
// with zero padding, into the GPU's order, in place. A 32-bit word holds 16 columns in both; here
// bits 2f, 2f + 1 of byte b hold w + 1 for column 4 f + b, so that one mask leaves four
// neighbouring weights in the four bytes of a word. Adds the number of invalid codes (10) to
// *invalid.
void repack(uint8_t* codes, int rows, int cols, int32_t* invalid, cudaStream_t stream);

// Element of a tile of keys or values (KvCache) of type f32; code_tile.h has those of codes.
EDGELLM_HOST_DEVICE inline int value_index(int position, int d, int head_dim) {
  return position % kAttentionChunk * head_dim + d;
}

// Columns of a ternary matrix: sums of 2^16 products of a weight code, 64 times too large
// (device/ternary_tile.cuh), and an int8 stay below 2^31.
inline constexpr int kMaxColumns = 1 << 16;

// Dimensions of a head that the attention kernels have room for.
inline constexpr int kMaxHeadDim = 256;

// Floats that the attention of a chunk leaves for one head: o[head_dim], maximum, sum; whole
// 16-byte words.
inline int attention_state(int head_dim) { return (head_dim + 5) / 4 * 4; }

// Bytes of the codes of a row's queries, and of their factors (attention_code.cu).
inline size_t attention_row_bytes(KvType type, int heads, int head_dim) {
  return static_cast<size_t>(heads) * (2 * static_cast<size_t>(kv_tile_dims(type, head_dim)) + 4);
}

// Device memory that the ops use between and inside launches.
struct Workspace {
  // [max_rows, quantised_row_bytes(widest input)]; attention: [max_rows, attention_row_bytes()].
  int8_t* codes = nullptr;
  float* row_s = nullptr;               // [max_rows]
  float* row_r = nullptr;               // [max_rows]
  int32_t* row_sum = nullptr;           // [max_rows]
  uint32_t* rms = nullptr;              // [max_rows], zero between launches (gemm_skinny.cu)
  int32_t* rms_read = nullptr;          // the same
  float* attention = nullptr;           // [attention_rows, heads, chunks, attention_state()]
  int32_t* attention_done = nullptr;    // [attention_rows, heads], zero between launches
  unsigned long long* best = nullptr;   // [max output rows] arg-max in progress
  int32_t* head_done = nullptr;         // [1], zero between launches
  int max_chunks = 0;                   // kIntegerChunk positions each, of the context
  int attention_rows = kMaxInlineRows;  // that `attention` has room for; more rows need none
  // The certified head's, for its output rows. Steps of many rows are digits (head_certified.cuh).
  int16_t* steps = nullptr;       // [rows, CertifiedHead::pitch_of(dim)]
  HiddenBound* hidden = nullptr;  // [rows]
  uint32_t* lower = nullptr;      // [rows], zero between launches
  int32_t* rescored = nullptr;    // [rows], zero between launches
  float* group_lower = nullptr;   // [rows, max_bound_groups()] lower bounds (plan/head.h)
  float* least = nullptr;         // [rows] what the logits that a choice keeps reach
  // [rows, listed_words(vocab)] a bit for each id: its logit is computed, and it may be chosen
  // unless it is banned.
  uint32_t* listed = nullptr;
  // Of rows in groups (Activations::kInt16Group): codes has 2 quantised_row_bytes() for each row.
  float* group_unit = nullptr;   // [groups of the widest input, group_stride(max_rows)]
  int32_t* group_sum = nullptr;  // the same
  float* up = nullptr;  // [max_rows, ffn], for FfnUpArgs::up_gain: the product up by itself
};

// From a group's units of all rows to those of the next group.
EDGELLM_HOST_DEVICE constexpr int group_stride(int rows) { return (rows + 7) / 8 * 8; }

// Whole blocks of 128 columns, which the GEMM of warpgroups reads.
EDGELLM_HOST_DEVICE inline size_t quantised_row_bytes(int cols) {
  return static_cast<size_t>((cols + 127) / 128 * 128);
}

// What the certified head did for a row of decode steps.
struct RescoredTotals {
  int64_t steps;
  int64_t rescored;  // rows of the vocabulary, in all steps
  int32_t most;      // in one step
};

// The mailbox is memory of the host that the GPU writes and the host polls: one word for each row
// of the last kMailboxSteps steps. Word [n % kMailboxSteps][r] tells what step n chose for row r.
// Its upper half is n, its lower half the id, or the fault that the step met. One store writes the
// word, so a host that sees the number of the step has the value.
inline constexpr uint32_t kMailboxSteps = 4;  // at most two steps are launched and not yet polled
EDGELLM_HOST_DEVICE inline uint64_t mailbox_word(uint32_t step, int32_t id, int32_t fault) {
  const int32_t value = fault != 0 ? -1 - fault : id;
  return static_cast<uint64_t>(step) << 32 | static_cast<uint32_t>(value);
}
inline uint32_t mailbox_step(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
inline int32_t mailbox_value(uint64_t word) {
  return static_cast<int32_t>(static_cast<uint32_t>(word));
}
// The fault in a mailbox_value(); 0 where the value is an id.
inline int32_t mailbox_fault(int32_t value) { return value < -1 ? -1 - value : 0; }

// The end of a decode step, post_step(): the chosen ids become the inputs of the next step, are
// counted where sequences choose by rules, and go into the mailbox. Nothing here needs the host, so
// a captured step can be replayed as it is.
struct MailboxArgs {
  const int32_t* chosen = nullptr;  // [rows], -1 where every id was banned
  // Rows that count; the others pad the pass and stay as they are.
  const uint32_t* n_used = nullptr;
  int32_t* ids = nullptr;             // [rows] out: chosen, 0 for -1 (such a row ends there)
  int32_t* positions = nullptr;       // [rows] in and out: one more
  const int32_t* fault = nullptr;     // of this step or an earlier one of the run
  uint32_t* step = nullptr;           // in: number of this step; out: one more
  uint64_t* mailbox = nullptr;        // [kMailboxSteps, mailbox_rows] out, memory of the host
  const int32_t* rescored = nullptr;  // [rows] by the certified head; null: the full head ran
  RescoredTotals* totals = nullptr;   // [rows] in and out: this step added
  CountArgs counts;                   // counts.marks null: nothing is counted
  int rows = 0;
  int mailbox_rows = 0;
};

// Throws Error (kDevice) where this program holds no code for the current GPU.
void require_code();

// What the choice of kernels (plan/) depends on, of the first GPU that this process used.
DeviceTraits device_traits();

void embed(const EmbedArgs& args, cudaStream_t stream);
void norm(const NormArgs& args, cudaStream_t stream);
void qkv(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream);
void attention(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream);
void attn_out(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream);
// With up_gain, gate has an even number of rows.
void ffn_up(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream);
void ffn_down(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream);
// attn_out, ffn_up and ffn_down in one launch, if there is one for their sizes; else false, and
// nothing is launched. What lies between them, ProjectArgs::y of ffn_down, may stay unwritten.
bool layer_end(const ProjectArgs& out, const FfnUpArgs& up, const ProjectArgs& down,
               cudaStream_t stream);
void head(const HeadArgs& args, const Workspace& workspace, cudaStream_t stream);
void certified_head(const CertifiedHeadArgs& args, const Workspace& workspace, cudaStream_t stream);
void certified_choose(const CertifiedChooseArgs& args, const Workspace& workspace,
                      cudaStream_t stream);
void choose(const ChooseArgs& args, cudaStream_t stream);
void count_choices(const CountArgs& args, cudaStream_t stream);
void logprobs(const LogprobArgs& args, cudaStream_t stream);
void post_step(const MailboxArgs& args, cudaStream_t stream);

// Builds the certified head of `w`, at most kMaxCertifiedCols columns: codes [rows, pitch],
// 16-aligned, and row_bounds [rows].
void build_certified_head(const DenseMatrix& w, int8_t* codes, CertifiedRow* row_bounds,
                          cudaStream_t stream);

}  // namespace edgellm::cuda
