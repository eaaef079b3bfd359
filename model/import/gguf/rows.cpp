#include "model/import/gguf/rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <string>

#include "base/error.h"
#include "model/float_bits.h"
#include "model/import/tensor_values.h"

namespace edgellm::model_io::gguf {
namespace {

struct Shape {
  int64_t rows = 0;
  int64_t cols = 0;
};

Shape shape_of(const CheckpointTensor& tensor) {
  if (tensor.shape.size() == 1) return {1, tensor.shape[0]};
  return {tensor.shape[0], tensor.shape[1]};
}

// The bytes of rows [first, first + n), which are whole groups.
std::vector<uint8_t> read_bytes(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                                int64_t first, int64_t n) {
  const int64_t cols = shape_of(tensor).cols;
  const TypeTraits& type = traits(tensor.gguf.type);
  const auto bytes_of = [&](int64_t rows) {
    return static_cast<uint64_t>(rows * cols / type.block * type.block_bytes +
                                 rows * type.row_header_bytes);
  };
  std::vector<uint8_t> bytes(bytes_of(n));
  checkpoint.read(tensor, bytes_of(first), bytes.data(), bytes.size());
  return bytes;
}

// The scale of I2_S behind the codes of the tensor.
float read_tensor_scale(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  float scale = 0;
  if (const auto tail = static_cast<uint64_t>(traits(tensor.gguf.type).tail_bytes); tail > 0) {
    checkpoint.read(tensor, tensor.bytes - tail, &scale, sizeof scale);
  }
  return scale;
}

// Which row of a range in the file is row `row` of the same range in our order. In a head of d rows
// the file has 0, d / 2, 1, d / 2 + 1, ...
int64_t file_row(const CheckpointTensor& tensor, int64_t row) {
  const int64_t head_rows = tensor.gguf.head_rows;
  if (head_rows == 0) return row;
  const int64_t half = head_rows / 2;
  const int64_t of_head = row % head_rows;
  return row - of_head + 2 * (of_head % half) + of_head / half;
}

// Rows in our order, each `width` values.
template <typename T>
void reorder_rows(const CheckpointTensor& tensor, int64_t width, std::vector<T>& values) {
  if (tensor.gguf.head_rows == 0) return;
  const std::vector<T> from = values;
  for (int64_t row = 0; row * width < static_cast<int64_t>(values.size()); ++row) {
    std::copy_n(from.begin() + file_row(tensor, row) * width, width, values.begin() + row * width);
  }
}

// Values that are 0 or one magnitude in each block, as codes and scales; false where they are not.
bool ternarise(const std::vector<float>& values, int64_t block, UnpackedRows& rows) {
  rows.codes.resize(values.size());
  rows.scales.clear();
  const auto width = static_cast<size_t>(block);
  for (size_t begin = 0; begin < values.size(); begin += width) {
    float scale = 0;
    for (size_t i = begin; i < begin + width; ++i) {
      const float magnitude = std::fabs(values[i]);
      if (magnitude == 0) continue;
      if (scale != 0 && magnitude != scale) return false;
      scale = magnitude;
    }
    for (size_t i = begin; i < begin + width; ++i) {
      rows.codes[i] = static_cast<int8_t>((values[i] > 0) - (values[i] < 0));
    }
    rows.scales.push_back(scale);
  }
  return true;
}

// A scale has no sign, and is 0 where its codes are; codes of the scale 0 are 0.
void normalise(UnpackedRows& rows, int64_t block) {
  const auto width = static_cast<size_t>(block);
  for (size_t i = 0; i < rows.scales.size(); ++i) {
    float& scale = rows.scales[i];
    const std::span codes(rows.codes.data() + i * width, width);
    const bool zero =
        std::all_of(codes.begin(), codes.end(), [](int8_t code) { return code == 0; });
    if (scale < 0) {
      for (int8_t& code : codes) code = static_cast<int8_t>(-code);
      scale = -scale;
    }
    if (scale == 0) std::fill(codes.begin(), codes.end(), int8_t{0});
    if (zero || scale == 0) scale = 0;  // not -0
  }
}

std::vector<uint8_t> pack(const std::vector<int8_t>& codes, int64_t rows, int64_t cols) {
  const int64_t row_bytes = (cols + 3) / 4;
  std::vector<uint8_t> packed(static_cast<size_t>(rows * row_bytes));
  for (int64_t row = 0; row < rows; ++row) {
    const int8_t* from = codes.data() + row * cols;
    uint8_t* to = packed.data() + row * row_bytes;
    for (int64_t col = 0; col < cols; ++col) {
      const unsigned code = static_cast<unsigned>(from[col]) & 3u;
      to[col / 4] = static_cast<uint8_t>(to[col / 4] | (code << (2 * (col % 4))));
    }
  }
  return packed;
}

float as_f16(float value) { return f16_to_float(float_to_f16(value)); }
float as_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

}  // namespace

int64_t rows_together(const CheckpointTensor& tensor) {
  const int64_t of_type = row_group(tensor.gguf.type, shape_of(tensor).cols);
  return std::lcm(of_type, std::max<int64_t>(1, tensor.gguf.head_rows));
}

UnpackedRows read_ternary_rows(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                               int64_t first, int64_t n) {
  const int64_t cols = shape_of(tensor).cols;
  UnpackedRows rows = unpack(tensor.gguf.type, read_bytes(checkpoint, tensor, first, n).data(), n,
                             cols, read_tensor_scale(checkpoint, tensor));
  reorder_rows(tensor, cols, rows.codes);
  reorder_rows(tensor, static_cast<int64_t>(rows.scales.size()) / n, rows.scales);
  const auto invalid = std::find(rows.codes.begin(), rows.codes.end(), kInvalidCode);
  if (invalid != rows.codes.end()) {
    const int64_t at = invalid - rows.codes.begin();
    fail_tensor(checkpoint, tensor,
                "holds the code 3, which is no ternary value, in row " +
                    std::to_string(first + at / cols) + ", column " + std::to_string(at % cols));
  }
  if (!all_finite(rows.scales.data(), rows.scales.size())) {
    fail_tensor(checkpoint, tensor, "has a scale that is not finite");
  }
  return rows;
}

std::vector<float> read_numbers(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                                int64_t first, int64_t n) {
  const int64_t cols = shape_of(tensor).cols;
  std::vector<float> values(static_cast<size_t>(n * cols));
  if (is_ternary(tensor.gguf.type)) {
    const UnpackedRows rows = read_ternary_rows(checkpoint, tensor, first, n);
    const auto block = static_cast<size_t>(scale_block(tensor.gguf.type, cols));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = rows.scales[i / block] * static_cast<float>(rows.codes[i]);
    }
    return values;
  }
  dequantise(tensor.gguf.type, read_bytes(checkpoint, tensor, first, n).data(), values.size(),
             values.data());
  reorder_rows(tensor, cols, values);
  if (!all_finite(values.data(), values.size())) {
    fail_tensor(checkpoint, tensor, "holds a value that is not finite");
  }
  return values;
}

CodedRows read_matrix_rows(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                           int64_t first, int64_t n) {
  const int64_t block = tensor.gguf.scale_block;
  UnpackedRows rows;
  if (is_ternary(tensor.gguf.type)) {
    rows = read_ternary_rows(checkpoint, tensor, first, n);
  } else {
    require(ternarise(read_numbers(checkpoint, tensor, first, n), block, rows),
            "find_scale_block found the matrix ternary");
  }
  normalise(rows, block);
  CodedRows result;
  result.scale_block = block;
  result.codes = pack(rows.codes, n, shape_of(tensor).cols);
  result.scales = std::move(rows.scales);
  return result;
}

std::optional<int64_t> find_scale_block(const Checkpoint& checkpoint,
                                        const CheckpointTensor& tensor) {
  const int64_t cols = shape_of(tensor).cols;
  if (is_ternary(tensor.gguf.type)) return scale_block(tensor.gguf.type, cols);
  // A row, or what formats with scales in blocks use.
  std::vector<int64_t> blocks = {cols};
  for (const int64_t block : {256, 128, 64, 32}) {
    if (block < cols && cols % block == 0) blocks.push_back(block);
  }
  size_t at = 0;
  UnpackedRows rows;
  for_each_rows(tensor, [&](int64_t first, int64_t n) {
    if (at == blocks.size()) return;
    const std::vector<float> values = read_numbers(checkpoint, tensor, first, n);
    while (at < blocks.size() && !ternarise(values, blocks[at], rows)) ++at;
  });
  if (at == blocks.size()) return std::nullopt;
  return blocks[at];
}

TableChoice choose_table_dtype(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  double f16_error = 0;  // sums of squares
  double bf16_error = 0;
  for_each_rows(tensor, [&](int64_t first, int64_t n) {
    for (const float value : read_numbers(checkpoint, tensor, first, n)) {
      const double of_f16 = static_cast<double>(as_f16(value)) - static_cast<double>(value);
      const double of_bf16 = static_cast<double>(as_bf16(value)) - static_cast<double>(value);
      f16_error += of_f16 * of_f16;
      bf16_error += of_bf16 * of_bf16;
    }
  });
  const bool exact = f16_error == 0 || bf16_error == 0;
  if (!exact && tensor.gguf.type == Type::kF32) return {DType::kF32, true};
  return {bf16_error <= f16_error ? DType::kBF16 : DType::kF16, exact};
}

std::vector<std::byte> read_table_rows(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                                       int64_t first, int64_t n) {
  const std::vector<float> values = read_numbers(checkpoint, tensor, first, n);
  const DType dtype = tensor.gguf.table_dtype;
  if (dtype == DType::kF32) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::byte> halves(2 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = dtype == DType::kF16 ? float_to_f16(values[i]) : float_to_bf16(values[i]);
    std::memcpy(halves.data() + 2 * i, &half, 2);
  }
  return halves;
}

}  // namespace edgellm::model_io::gguf
