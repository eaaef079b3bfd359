// The types of GGUF tensors that edgellm reads: how many bytes they take, and what they hold
// (docs/gguf.md has the layouts).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace edgellm::model_io::gguf {

// Some of ggml's numbers stand for more than one layout; each layout is a type here.
enum class Type : uint8_t {
  // numbers
  kF32,
  kF16,
  kBf16,
  kQ4_0,
  kQ8_0,
  kQ4K,
  kQ6K,
  // ternary
  kTq1_0,
  kTq2_0,
  kI2sWindow128,  // I2_S as x86 builds write it
  kI2sWindow64,   // as ARM builds do
  kI2sFourRows,   // as x86 builds without ACT_PARALLEL do
  kQ2_0Of64,
  kQ2_0Of128,
  kPtq1_0,
  kIq1Bn,
  kIq2Bn,
  kIq2BnR4,
};

// Of values that a block holds, bytes that it takes, and what a row and the tensor add to them.
struct TypeTraits {
  Type type;
  uint32_t number;   // ggml's
  const char* name;  // ggml's
  int block;
  int block_bytes;
  int row_header_bytes = 0;
  int tail_bytes = 0;         // behind the tensor
  int rows_together = 1;      // rows that share bytes
  bool blocks_in_row = true;  // false: blocks run through the tensor without regard to rows
};

const TypeTraits& traits(Type type);
bool is_ternary(Type type);

// The layouts that a number may stand for; empty for an unknown one.
std::vector<Type> types_of(uint32_t number);

// ggml's name for a number, also of types that cannot be read: "Q5_K", or "type 77".
std::string type_name(uint32_t number);

// What would help with a type that cannot be read, to end a message: "; ...". May be empty.
std::string type_advice(uint32_t number);

// The bytes of a tensor of this shape; empty where the type cannot hold it.
std::optional<uint64_t> tensor_bytes(Type type, int64_t rows, int64_t cols);

// Rows that must be decoded together: those in a range that begins and ends at multiples of this.
int64_t row_group(Type type, int64_t cols);

// n values of a type that holds numbers, in float32, bit for bit as llama.cpp and its `gguf`
// package compute them. `n` is a multiple of the block.
void dequantise(Type type, const uint8_t* data, size_t n, float* values);

// Rows of a ternary type: codes -1, 0, +1, or kInvalidCode where the bits mean none of these.
inline constexpr int8_t kInvalidCode = 2;
struct UnpackedRows {
  std::vector<int8_t> codes;  // [rows, cols]
  std::vector<float> scales;  // [rows, cols / scale_block]
};

// Inputs that share a scale: the block of types that have one in each block, else all `cols`.
int64_t scale_block(Type type, int64_t cols);

// `data` is that of `rows` rows, a multiple of row_group(). `tensor_scale` is the one scale of
// I2_S.
UnpackedRows unpack(Type type, const uint8_t* data, int64_t rows, int64_t cols, float tensor_scale);

}  // namespace edgellm::model_io::gguf
