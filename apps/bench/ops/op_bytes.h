// Bytes that the ops of a layer and the head move through memory, counted by step. A step is a
// launch of a GPU or a parallel loop of the CPU. Counted are the fused ops (kernels/ops.h) and the
// chain of plain steps that does the same work (apps/bench/ops/unfused/).
//
// - Weights, gains, RoPE angles, cached keys and values count once for each op, however many blocks
//   or threads read them.
// - An array of rows counts once for each step that reads it and once for each step that writes it.
//   Whether a cache holds it between two steps is not looked at.
// - New keys and values count once where attention writes them and once, as all others, where it
//   reads them.
// - What the blocks of one launch hand to each other does not count: quantised rows of the skinny
//   GEMM, which never leave the cluster, and the states that attention merges.
// - Left out: positions, sequence numbers, faults, block tables (a few bytes a row).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"
#include "model/config.h"

namespace edgellm::bench {

// Type of the KV cache of every op that is measured.
inline constexpr KvType kOpsKvType = KvType::kI16;

struct OpBytes {
  uint64_t weights = 0;      // ternary codes and their scales, gains
  uint64_t kv = 0;           // keys and values of the cache with their units, read or written
  uint64_t activations = 0;  // rows before, between and after the steps; RoPE angles

  uint64_t total() const { return weights + kv + activations; }
  OpBytes& operator+=(const OpBytes& other) {
    weights += other.weights;
    kv += other.kv;
    activations += other.activations;
    return *this;
  }
};

// Passes of up to this many rows are decode steps in any case (cuda::kMaxInlineRows).
inline constexpr int kMaxInlineRows = 8;

// `rows` rows. In a decode step each is a sequence of its own, at position `depth`; else they are a
// part of one prompt, and the first one stands there.
struct PassShape {
  int rows = 1;
  int depth = 0;
  bool decodes = false;  // also with more than kMaxInlineRows rows

  bool is_decode() const { return decodes || rows <= kMaxInlineRows; }
  int sequences() const { return is_decode() ? rows : 1; }
  // Positions that a sequence holds after the pass.
  int positions() const { return is_decode() ? depth + 1 : depth + rows; }
};

enum class LayerOp { kQkv, kAttention, kAttnOut, kFfnUp, kFfnDown };
inline constexpr LayerOp kLayerOps[] = {LayerOp::kQkv, LayerOp::kAttention, LayerOp::kAttnOut,
                                        LayerOp::kFfnUp, LayerOp::kFfnDown};
const char* to_string(LayerOp op);  // the name of the op

// Columns to a multiple of which a device pads a row.
struct RowPadding {
  int weights;      // ternary codes
  int activations;  // int8 codes of a quantised row
};

// `steps` of an op with a ternary product:
//   1  all of it is one launch: the quantised rows stay on the chip
//   2  quantise; multiply and finish
//   3  qkv only: quantise; multiply; RoPE
OpBytes fused_bytes(const ModelConfig& config, LayerOp op, const PassShape& pass,
                    const RowPadding& padding, int steps);

// A step each for the norm, the quantisation, every matrix, RoPE, the activation and the addition.
// Attention has no unfused chain: the same bytes as fused.
OpBytes unfused_bytes(const ModelConfig& config, LayerOp op, const PassShape& pass,
                      const RowPadding& padding);

// The head with its norm: logits of `rows` rows. `element_bytes` of its weights: 2 or 4. `steps`:
//   2  norm; logits and their arg-max
//   3  norm; logits; arg-max
OpBytes full_head_bytes(const ModelConfig& config, int rows, int element_bytes, int steps);

// The certified head, with `row_bytes` of codes a row. `rescored`: logits that it computed from the
// weights themselves, in all rows together.
OpBytes certified_head_bytes(const ModelConfig& config, int rows, size_t row_bytes,
                             int element_bytes, uint64_t rescored);

}  // namespace edgellm::bench
