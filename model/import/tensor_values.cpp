#include "model/import/tensor_values.h"

#include <bit>
#include <cstring>

#include "base/text.h"
#include "model/float_bits.h"
#include "model/import/coded_rows.h"
#include "model/import/gguf/rows.h"

namespace edgellm::model_io {

void fail_tensor(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                 const std::string& what, ExitCode code) {
  throw Error(code, printable_path(checkpoint.path_of(tensor)) + ": tensor '" +
                        printable(tensor.name) + "' " + what);
}

bool is_float_dtype(const std::string& dtype) {
  return dtype == "BF16" || dtype == "F16" || dtype == "F32";
}

size_t float_dtype_bytes(const std::string& dtype) { return dtype == "F32" ? 4 : 2; }

void widen(const std::string& dtype, const std::byte* from, size_t n, float* to) {
  if (dtype == "F32") {
    std::memcpy(to, from, n * 4);
    return;
  }
  const bool is_bf16 = dtype == "BF16";
  for (size_t i = 0; i < n; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = is_bf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
}

bool all_finite(const float* values, size_t n) {
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    finite &= (std::bit_cast<uint32_t>(values[i]) & 0x7F800000u) != 0x7F800000u;
  }
  return finite;
}

int64_t rows_together(const CheckpointTensor& tensor) {
  return tensor.coding == RowCoding::kGguf ? gguf::rows_together(tensor) : 1;
}

DType table_dtype(const CheckpointTensor& table) {
  if (table.coding == RowCoding::kGguf) return table.gguf.table_dtype;
  if (table.coding != RowCoding::kNone) return coded_dtype(table);
  if (table.dtype == "BF16") return DType::kBF16;
  if (table.dtype == "F16") return DType::kF16;
  require(table.dtype == "F32", "a float dtype");
  return DType::kF32;
}

std::vector<std::byte> table_rows(const Checkpoint& checkpoint, const CheckpointTensor& table,
                                  int64_t first, int64_t n) {
  if (table.coding == RowCoding::kGguf) return gguf::read_table_rows(checkpoint, table, first, n);
  if (table.coding != RowCoding::kNone) {
    return decode_rows(table, read_coded_rows(checkpoint, table, first, n));
  }
  const size_t row_bytes = static_cast<size_t>(table.shape[1]) * float_dtype_bytes(table.dtype);
  std::vector<std::byte> rows(static_cast<size_t>(n) * row_bytes);
  checkpoint.read(table, static_cast<uint64_t>(first) * row_bytes, rows.data(), rows.size());
  return rows;
}

bool tables_are_equal(const Checkpoint& checkpoint, const CheckpointTensor& a,
                      const CheckpointTensor& b) {
  bool equal = true;
  for_each_rows(a, [&](int64_t first, int64_t n) {
    equal = equal && table_rows(checkpoint, a, first, n) == table_rows(checkpoint, b, first, n);
  });
  return equal;
}

}  // namespace edgellm::model_io
