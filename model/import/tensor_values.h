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

// Rows of a matrix that must be read together: in ranges that begin and end at multiples of this.
int64_t rows_together(const CheckpointTensor& tensor);

// Calls use(first row, number of rows) until all rows of a matrix were used, about
// kImportBlockBytes of float32 at a time.
template <typename Use>
void for_each_rows(const CheckpointTensor& tensor, const Use& use) {
  const int64_t rows = tensor.shape[0];
  const int64_t together = rows_together(tensor);
  const int64_t group_bytes = tensor.shape[1] * static_cast<int64_t>(sizeof(float)) * together;
  const int64_t step =
      std::max<int64_t>(1, static_cast<int64_t>(kImportBlockBytes) / group_bytes) * together;
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
