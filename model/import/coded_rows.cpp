#include "model/import/coded_rows.h"

#include <cmath>
#include <cstring>
#include <span>
#include <string>

#include "base/error.h"
#include "model/float_bits.h"
#include "model/import/gguf/rows.h"
#include "model/import/tensor_values.h"

namespace edgellm::model_io {
namespace {

// A code of TMAC (0, 1, 2 for -1, 0, +1) as one of t2; 3 in both is none.
constexpr uint8_t t2_of_tmac(unsigned code) {
  constexpr uint8_t kCodes[] = {3, 0, 1, 2};
  return kCodes[code];
}

// `row` is counted from the tensor's first.
[[noreturn]] void fail_row(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                           const std::string& what, size_t row) {
  fail_tensor(checkpoint, tensor, what + ", in row " + std::to_string(row));
}

// A row of TM2 is its scale and its codes.
void read_tm2(const Checkpoint& checkpoint, const CheckpointTensor& tensor, size_t first,
              CodedRows& rows) {
  const size_t n_rows = rows.scales.size();
  const auto cols = static_cast<size_t>(tensor.shape[1]);
  const size_t row_bytes = (cols + 3) / 4;
  const size_t stride = 2 + row_bytes;
  std::vector<uint8_t> bytes(n_rows * stride);
  checkpoint.read(tensor, first * stride, bytes.data(), bytes.size());
  rows.codes.resize(n_rows * row_bytes);
  // Bits behind the last column belong to nothing.
  const auto last_mask = static_cast<uint8_t>(cols % 4 == 0 ? 0xFF : (1 << (2 * (cols % 4))) - 1);
  for (size_t row = 0; row < n_rows; ++row) {
    uint16_t scale = 0;
    std::memcpy(&scale, bytes.data() + row * stride, 2);
    rows.scales[row] = f16_to_float(scale);
    uint8_t* codes = rows.codes.data() + row * row_bytes;
    std::memcpy(codes, bytes.data() + row * stride + 2, row_bytes);
    codes[row_bytes - 1] &= last_mask;
    for (size_t i = 0; i < row_bytes; ++i) {
      if (((codes[i] >> 1) & ~codes[i] & 0x55) != 0) {
        fail_row(checkpoint, tensor, "holds the code 10, which is no value", first + row);
      }
    }
  }
}

// All codes of TMAC's matrix are one run: a row may begin within a byte.
void read_tmac_codes(const Checkpoint& checkpoint, const CheckpointTensor& tensor, size_t first,
                     CodedRows& rows) {
  const size_t n_rows = rows.scales.size();
  const auto cols = static_cast<size_t>(tensor.shape[1]);
  const size_t row_bytes = (cols + 3) / 4;
  const size_t begin = first * cols;
  const size_t n_values = n_rows * cols;
  std::vector<uint8_t> bytes((begin + n_values + 3) / 4 - begin / 4);
  checkpoint.read(tensor, begin / 4, bytes.data(), bytes.size());
  rows.codes.resize(n_rows * row_bytes);
  for (size_t i = 0; i < n_values; ++i) {
    const size_t at = begin % 4 + i;
    const uint8_t code = t2_of_tmac((bytes[at / 4] >> (2 * (at % 4))) & 3u);
    if (code == 2) {
      fail_row(checkpoint, tensor, "holds the code 3, which is no value", first + i / cols);
    }
    const size_t col = i % cols;
    uint8_t& byte = rows.codes[i / cols * row_bytes + col / 4];
    byte = static_cast<uint8_t>(byte | (code << (2 * (col % 4))));
  }
}

void read_tmac_int8(const Checkpoint& checkpoint, const CheckpointTensor& tensor, size_t first,
                    CodedRows& rows) {
  const auto cols = static_cast<size_t>(tensor.shape[1]);
  rows.values.resize(rows.scales.size() * cols);
  checkpoint.read(tensor, first * cols, rows.values.data(), rows.values.size());
}

}  // namespace

CodedRows read_coded_rows(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                          int64_t first_row, int64_t n) {
  if (tensor.coding == RowCoding::kGguf)
    return gguf::read_matrix_rows(checkpoint, tensor, first_row, n);
  const auto first = static_cast<size_t>(first_row);
  CodedRows rows;
  rows.scale_block = tensor.shape[1];
  rows.scales.resize(static_cast<size_t>(n));
  if (tensor.coding == RowCoding::kTm2) {
    read_tm2(checkpoint, tensor, first, rows);
  } else {
    checkpoint.read_scales(tensor, first, rows.scales.data(), rows.scales.size());
    if (tensor.coding == RowCoding::kTmacInt8) {
      read_tmac_int8(checkpoint, tensor, first, rows);
    } else {
      read_tmac_codes(checkpoint, tensor, first, rows);
    }
  }
  for (size_t row = 0; row < rows.scales.size(); ++row) {
    float& scale = rows.scales[row];
    if (!std::isfinite(scale) || scale < 0) {
      fail_row(checkpoint, tensor,
               "has the scale " + std::to_string(scale) + ", expected a finite number of 0 or more",
               first + row);
    }
    scale += 0.0f;  // -0 becomes 0
  }
  return rows;
}

DType coded_dtype(const CheckpointTensor& tensor) {
  require(tensor.coding != RowCoding::kNone && tensor.coding != RowCoding::kGguf,
          "a tensor with row scales");
  return tensor.coding == RowCoding::kTm2 ? DType::kF16 : DType::kF32;
}

std::vector<std::byte> decode_rows(const CheckpointTensor& tensor, const CodedRows& rows) {
  const size_t n_rows = rows.scales.size();
  const auto cols = static_cast<size_t>(tensor.shape[1]);
  const size_t row_bytes = (cols + 3) / 4;
  std::vector<float> values(n_rows * cols);
  for (size_t row = 0; row < n_rows; ++row) {
    const float scale = rows.scales[row];
    for (size_t col = 0; col < cols; ++col) {
      float& value = values[row * cols + col];
      if (tensor.coding == RowCoding::kTmacInt8) {
        value = static_cast<float>(rows.values[row * cols + col]) * scale / 127.0f;
      } else {
        const unsigned code = (rows.codes[row * row_bytes + col / 4] >> (2 * (col % 4))) & 3u;
        value = code == 0 ? 0.0f : code == 1 ? scale : -scale;
      }
    }
  }
  if (coded_dtype(tensor) == DType::kF32) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::byte> halves(2 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = exact_f16(values[i]);
    std::memcpy(halves.data() + 2 * i, &half, 2);
  }
  return halves;
}

}  // namespace edgellm::model_io
