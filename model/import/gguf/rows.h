// The rows of a GGUF tensor (CheckpointTensor::coding is kGguf), in the order that Hugging Face's
// checkpoints have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "model/import/coded_rows.h"
#include "model/import/safetensors.h"
#include "model/weights.h"

namespace edgellm::model_io::gguf {

// Ranges of rows begin and end at multiples of this.
int64_t rows_together(const CheckpointTensor& tensor);

// Rows [first, first + n) as numbers, [n, cols]; throws Error where one is not finite. A tensor of
// one dimension is one row.
std::vector<float> read_numbers(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                                int64_t first, int64_t n);

// Codes and scales of a ternary type as the file has them.
UnpackedRows read_ternary_rows(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                               int64_t first, int64_t n);

// A matrix as codes and scales in the layout of t2; scales of blocks that hold zeros only are 0.
// Throws Error for a code without a meaning and for a scale that is not finite.
CodedRows read_matrix_rows(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                           int64_t first, int64_t n);

// How many inputs share a scale in a matrix. Of a type that holds numbers it is found out: the most
// for which all values of each block are 0 or one magnitude; empty where the matrix is not ternary.
std::optional<int64_t> find_scale_block(const Checkpoint& checkpoint,
                                        const CheckpointTensor& tensor);

// How an embedding or a head is best kept: as bf16 or f16, whichever is nearer to its values; as
// f32 where the file has float32 values that neither holds exactly.
struct TableChoice {
  DType dtype = DType::kF16;
  bool exact = false;
};
TableChoice choose_table_dtype(const Checkpoint& checkpoint, const CheckpointTensor& tensor);

// Rows of a table as numbers of tensor.gguf.table_dtype.
std::vector<std::byte> read_table_rows(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                                       int64_t first, int64_t n);

}  // namespace edgellm::model_io::gguf
