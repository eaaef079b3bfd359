// The values of a checkpoint's tensors, a few rows at a time, so that memory stays small.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/import/safetensors.h"
#include "model/weights.h"

namespace edgellm::model_io {

// Bytes of one read: large enough that a read costs little, small enough to stay in the
// second-level cache.
inline constexpr size_t kImportBlockBytes = size_t{512} << 10;

// Throws Error: "PATH: tensor 'NAME' WHAT".
[[noreturn]] void fail_tensor(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                              const std::string& what, ExitCode code = ExitCode::kModelFile);

// BF16, F16 and F32.
bool is_float_dtype(const std::string& dtype);
size_t float_dtype_bytes(const std::string& dtype);

// n values of such a dtype as float32.
void widen(const std::string& dtype, const std::byte* from, size_t n, float* to);

bool all_finite(const float* values, size_t n);

// Calls use(first row, number of rows) until all rows of a matrix were used, about
// kImportBlockBytes of float32 at a time.
template <typename Use>
void for_each_rows(const CheckpointTensor& tensor, const Use& use) {
  const int64_t rows = tensor.shape[0];
  const auto row_bytes = static_cast<size_t>(tensor.shape[1]) * sizeof(float);
  const auto step = static_cast<int64_t>(std::max<size_t>(1, kImportBlockBytes / row_bytes));
  for (int64_t row = 0; row < rows; row += step) use(row, std::min(step, rows - row));
}

// An embedding or a head: the dtype it is written in, and rows [first, first + n) as they are
// written.
DType table_dtype(const CheckpointTensor& table);
std::vector<std::byte> table_rows(const Checkpoint& checkpoint, const CheckpointTensor& table,
                                  int64_t first, int64_t n);
bool tables_are_equal(const Checkpoint& checkpoint, const CheckpointTensor& a,
                      const CheckpointTensor& b);

}  // namespace edgellm::model_io
