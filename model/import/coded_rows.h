// Matrices of older files, whose rows have a scale each, and of GGUF files, where blocks of a row
// may have one: their rows as codes and scales, or as numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/import/safetensors.h"
#include "model/weights.h"

namespace edgellm::model_io {

// Rows [first, first + n) of a matrix (CheckpointTensor::coding is not kNone).
struct CodedRows {
  std::vector<float> scales;   // [n, ceil(cols / scale_block)], finite and without a sign
  int64_t scale_block = 0;     // inputs that share a scale: `cols` but for GGUF
  std::vector<uint8_t> codes;  // [n, ceil(cols / 4)] in the layout of t2; of a ternary tensor
  std::vector<int8_t> values;  // [n, cols]; of an int8 tensor
};
CodedRows read_coded_rows(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                          int64_t first, int64_t n);

// The values of these rows of an older file as numbers of the dtype that holds them exactly: f16
// for a TM2 tensor, f32 for a TMAC one (an int8 value is q * scale / 127 in
// float32, as those programs computed it).
DType coded_dtype(const CheckpointTensor& tensor);
std::vector<std::byte> decode_rows(const CheckpointTensor& tensor, const CodedRows& rows);

}  // namespace edgellm::model_io
