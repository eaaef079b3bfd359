#include "apps/bench/ops/op_bytes.h"

#include "base/error.h"

namespace edgellm::bench {
namespace {

constexpr uint64_t kFloat = sizeof(float);
constexpr uint64_t kInt16 = 2;
constexpr uint64_t kRowScalars = 3 * 4;  // of a quantised row: codes per unit, RMS factor, sum

uint64_t u(int n) { return static_cast<uint64_t>(n); }
uint64_t padded(int n, int multiple) {
  return (u(n) + u(multiple) - 1) / u(multiple) * u(multiple);
}

uint64_t quantised_row(int cols, const RowPadding& padding) {
  return padded(cols, padding.activations) + kRowScalars;
}

// Rows of codes, four a byte, and one scale.
uint64_t ternary(int rows, int cols, const RowPadding& padding) {
  return u(rows) * padded(cols, padding.weights) / 4 + kFloat;
}

// The input of an op with a ternary product.
struct Input {
  int cols;
  bool norm;       // a gain is folded in
  int n_matrices;  // that read the quantised row
};

Input input_of(const ModelConfig& config, LayerOp op) {
  switch (op) {
    case LayerOp::kQkv:
      return {config.dim, true, 3};
    case LayerOp::kAttnOut:
      return {config.q_dim(), config.attn_sub_norm, 1};
    case LayerOp::kFfnUp:
      return {config.dim, true, 2};
    case LayerOp::kFfnDown:
      return {config.ffn, config.ffn_sub_norm, 1};
    case LayerOp::kAttention:
      break;
  }
  require(false, "attention has no ternary product");
  return {};
}

uint64_t weight_bytes(const ModelConfig& config, LayerOp op, const RowPadding& padding) {
  const Input input = input_of(config, op);
  const uint64_t gain = input.norm ? u(input.cols) * kFloat : 0;
  switch (op) {
    case LayerOp::kQkv:
      return gain + ternary(config.q_dim(), config.dim, padding) +
             2 * ternary(config.kv_dim(), config.dim, padding);
    case LayerOp::kFfnUp:
      return gain + 2 * ternary(config.ffn, config.dim, padding);
    default:
      return gain + ternary(config.dim, input.cols, padding);
  }
}

OpBytes attention_bytes(const ModelConfig& config, const PassShape& pass) {
  // A key and a value of each kv head, with their units.
  const uint64_t position = u(config.kv_heads) * u(2 * kv_tile_dims(kOpsKvType, config.head_dim) *
                                                       kv_element_bytes(kOpsKvType) +
                                                   kv_unit_bytes(kOpsKvType));
  const uint64_t rows = u(pass.rows);
  OpBytes bytes;
  bytes.kv = (rows + u(pass.sequences()) * u(pass.positions())) * position;
  // q, k and v in, the result out.
  bytes.activations = rows * (2 * u(config.q_dim()) + 2 * u(config.kv_dim())) * kFloat;
  return bytes;
}

uint64_t angles(const ModelConfig& config, int rows) {
  return u(rows) * u(config.head_dim) * kFloat;  // half of them cosines, half sines
}

// Rows between the steps of a fused op.
uint64_t between_steps(const ModelConfig& config, LayerOp op, int rows, const RowPadding& padding,
                       int steps) {
  uint64_t bytes = 0;
  // Quantised rows out and in.
  if (steps >= 2) bytes += 2 * u(rows) * quantised_row(input_of(config, op).cols, padding);
  if (steps >= 3) {
    require(op == LayerOp::kQkv, "only qkv has a third step");
    const uint64_t q = u(rows) * u(config.q_dim()) * kFloat;
    const uint64_t k = u(rows) * u(config.kv_dim()) * kFloat;
    bytes += 2 * (q + k);  // rotated in place
  }
  return bytes;
}

}  // namespace

const char* to_string(LayerOp op) {
  switch (op) {
    case LayerOp::kQkv:
      return "qkv";
    case LayerOp::kAttention:
      return "attention";
    case LayerOp::kAttnOut:
      return "attn_out";
    case LayerOp::kFfnUp:
      return "ffn_up";
    case LayerOp::kFfnDown:
      return "ffn_down";
  }
  return "";
}

OpBytes fused_bytes(const ModelConfig& config, LayerOp op, const PassShape& pass,
                    const RowPadding& padding, int steps) {
  if (op == LayerOp::kAttention) return attention_bytes(config, pass);
  const uint64_t rows = u(pass.rows);
  OpBytes bytes;
  bytes.weights = weight_bytes(config, op, padding);
  bytes.activations = rows * u(input_of(config, op).cols) * kFloat +
                      between_steps(config, op, pass.rows, padding, steps);
  switch (op) {
    case LayerOp::kQkv:
      bytes.activations +=
          angles(config, pass.rows) + rows * u(config.q_dim() + 2 * config.kv_dim()) * kFloat;
      break;
    case LayerOp::kFfnUp:
      bytes.activations += rows * u(config.ffn) * kFloat;
      break;
    default:
      bytes.activations += 2 * rows * u(config.dim) * kFloat;  // x, read and written
  }
  return bytes;
}

OpBytes unfused_bytes(const ModelConfig& config, LayerOp op, const PassShape& pass,
                      const RowPadding& padding) {
  if (op == LayerOp::kAttention) return attention_bytes(config, pass);
  const Input input = input_of(config, op);
  const uint64_t rows = u(pass.rows);
  const uint64_t cols = u(input.cols);
  const uint64_t quantised = rows * quantised_row(input.cols, padding);
  OpBytes bytes;
  bytes.weights = weight_bytes(config, op, padding);
  // Norm: row in, row and RMS factor out (the factor counts with the quantised row).
  if (input.norm) bytes.activations += 2 * rows * cols * kFloat;
  // Quantise: row in, codes out, which every product reads.
  bytes.activations += rows * cols * kFloat + quantised;
  bytes.activations += u(input.n_matrices) * quantised;
  switch (op) {
    case LayerOp::kQkv: {
      const uint64_t q = rows * u(config.q_dim()) * kFloat;
      const uint64_t k = rows * u(config.kv_dim()) * kFloat;
      bytes.activations += q + 2 * k;                                // products out
      bytes.activations += 2 * (q + k) + angles(config, pass.rows);  // RoPE, in place
      break;
    }
    case LayerOp::kFfnUp:
      // Products out, activation: both in, u out.
      bytes.activations += (2 + 2 + 1) * rows * u(config.ffn) * kFloat;
      break;
    default:
      // Product out, addition: product and x in, x out.
      bytes.activations += (1 + 2 + 1) * rows * u(config.dim) * kFloat;
  }
  return bytes;
}

OpBytes full_head_bytes(const ModelConfig& config, int rows, int element_bytes, int steps) {
  OpBytes bytes;
  bytes.weights = u(config.vocab) * u(config.dim) * u(element_bytes) + u(config.dim) * kFloat;
  // x in, the normed row out and in, logits out.
  bytes.activations = u(rows) * (3 * u(config.dim) + u(config.vocab)) * kFloat;
  if (steps >= 3) bytes.activations += u(rows) * u(config.vocab) * kFloat;  // logits in
  return bytes;
}

OpBytes certified_head_bytes(const ModelConfig& config, int rows, size_t row_bytes,
                             int element_bytes, uint64_t rescored) {
  OpBytes bytes;
  bytes.weights = u(config.vocab) * (row_bytes + sizeof(CertifiedRow)) + u(config.dim) * kFloat +
                  rescored * u(config.dim) * u(element_bytes);
  // x in, the normed row and its steps of 16 bits out and in, upper bounds out and in.
  bytes.activations =
      u(rows) * (3 * u(config.dim) * kFloat + 2 * CertifiedHead::pitch_of(config.dim) * kInt16 +
                 2 * u(config.vocab) * kFloat);
  return bytes;
}

}  // namespace edgellm::bench
