// Bytes that the ops of a layer move through memory, by what the launches of a GPU or the parallel
// loops of the CPU read and write: of the fused ops (kernels/ops.h) and of the chain of plain
// kernels that does the same work (apps/bench/ops/unfused/cuda_unfused.h,
// apps/bench/ops/unfused/cpu_unfused.h). Weights and cached keys and values count once, however
// many blocks read them; a value that one launch writes and a later one reads counts twice. That it
// may stay in a cache between the two is not looked at.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/config.h"

namespace edgellm::bench {

struct OpBytes {
  uint64_t weights = 0;      // ternary codes and their scales, gains
  uint64_t kv = 0;           // keys and values in half precision, read or written
  uint64_t activations = 0;  // rows between the launches, results, RoPE angles

  uint64_t total() const { return weights + kv + activations; }
  OpBytes& operator+=(const OpBytes& other) {
    weights += other.weights;
    kv += other.kv;
    activations += other.activations;
    return *this;
  }
};

// Passes of up to this many rows are decode steps: each row is a sequence of its own, at the same
// depth. More rows are a part of one prompt (cuda::kMaxInlineRows).
inline constexpr int kMaxDecodeRows = 8;

// `rows` rows, of which the first (in decode: each) stands at position `depth`.
struct PassShape {
  int rows = 1;
  int depth = 0;

  bool is_decode() const { return rows <= kMaxDecodeRows; }
  int sequences() const { return is_decode() ? rows : 1; }
  int positions() const {
    return is_decode() ? depth + 1 : depth + rows;
  }  // of a sequence, at last
};

enum class LayerOp { kQkv, kAttention, kAttnOut, kFfnUp, kFfnDown };
inline constexpr LayerOp kLayerOps[] = {LayerOp::kQkv, LayerOp::kAttention, LayerOp::kAttnOut,
                                        LayerOp::kFfnUp, LayerOp::kFfnDown};
const char* to_string(LayerOp op);  // the name of the op

// The GPU's rows of codes are whole 16-byte words, and with one row it runs an op as one launch;
// with more, and on the CPU always, a product has two parts, and the quantised rows lie in memory
// between them.
enum class Engine { kCpu, kCuda };

OpBytes fused_bytes(const ModelConfig& config, LayerOp op, const PassShape& pass, Engine engine);

// Attention has no unfused chain here: the same bytes as fused.
OpBytes unfused_bytes(const ModelConfig& config, LayerOp op, const PassShape& pass, Engine engine);

// The head with its norm: logits of `rows` rows. `element_bytes` of its weights: 2 or 4.
OpBytes full_head_bytes(const ModelConfig& config, int rows, int element_bytes);

// The certified head, `rescored` of whose logits were computed from the weights themselves, in all
// rows together.
OpBytes certified_head_bytes(const ModelConfig& config, int rows, int element_bytes,
                             uint64_t rescored);

}  // namespace edgellm::bench
