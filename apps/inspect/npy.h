// Writing NumPy's .npy files (format 1.0): float32, C order, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/output_file.h"

namespace edgellm {

// The file is opened, and so found unwritable, when the object is made; values follow in order. "-"
// is standard output, where no terminal is (Error, kUsage).
class NpyFile {
 public:
  explicit NpyFile(const std::string& path);

  void write_header(const std::vector<int64_t>& shape);
  void write(std::span<const float> values);
  void commit();

 private:
  void write_bytes(const void* data, size_t bytes);

  std::optional<OutputFile> file_;  // empty: standard output
};

}  // namespace edgellm
