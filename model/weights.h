// Views of every weight of a model, each with its shape. The bytes belong to a ModelFile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace edgellm {

enum class DType : uint8_t { kT2, kF32, kF16, kBF16, kI8, kU8 };

const char* to_string(DType dtype);  // "t2", "f32", "f16", "bf16", "i8", "u8"

// A ternary matrix [rows, cols] in the layout of the file: row-major, four codes a byte, first code
// in the low bits, 00 = 0, 01 = +1, 11 = -1, each row padded to a byte with zero codes.
struct TernaryTensor {
  const uint8_t* codes = nullptr;  // [rows, ceil(cols / 4)]
  std::span<const float> scale;    // [1] or [rows]; y = scale * (codes . x); empty: group_scale
  int rows = 0;
  int cols = 0;
  // [rows, ceil(cols / 128)] of f16 or f32: a scale for each 128 columns of a row.
  const std::byte* group_scale = nullptr;
  DType group_scale_dtype = DType::kF16;

  size_t row_bytes() const { return (static_cast<size_t>(cols) + 3) / 4; }
  size_t bytes() const { return row_bytes() * static_cast<size_t>(rows); }
};

// An unquantised matrix [rows, cols], row-major, of f32, f16 or bf16. Without data where the file
// has a ternary one in its place: the sizes are there all the same.
struct DenseTensor {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int rows = 0;
  int cols = 0;
};

// The gains of the input norms of a layer's matrices, [cols] of each; empty where the model has
// none.
struct InputNorms {
  std::span<const float> q, k, v, o, gate, up, down;
};

struct LayerWeights {
  std::span<const float> attn_norm;       // [dim]
  TernaryTensor q;                        // [heads * head_dim, dim]
  TernaryTensor k, v;                     // [kv_heads * head_dim, dim]
  std::span<const float> q_norm, k_norm;  // [head_dim], empty where the model has none
  std::span<const float> attn_sub_norm;   // [heads * head_dim], empty where the model has none
  TernaryTensor o;                        // [dim, heads * head_dim]
  std::span<const float> ffn_norm;        // [dim]
  TernaryTensor gate, up;                 // [ffn, dim]
  std::span<const float> ffn_sub_norm;    // [ffn], empty where the model has none
  TernaryTensor down;                     // [dim, ffn]
  InputNorms input_norms;
};

struct Weights {
  DenseTensor embedding;              // [vocab, dim]
  DenseTensor head;                   // [vocab, dim]; the embedding's bytes when the head is tied
  TernaryTensor ternary_embedding;    // in place of the dense ones: without codes where those have
  TernaryTensor ternary_head;         // data
  std::span<const float> final_norm;  // [dim]
  std::span<const float> inv_freq;    // [head_dim / 2], rope scaling applied
  std::vector<LayerWeights> layers;
};

}  // namespace edgellm
