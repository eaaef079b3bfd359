// Writing NumPy's .npy files (format 1.0): float32, C order, little-endian.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/output_file.h"

namespace edgellm {

// The file is opened, and so found unwritable, when the object is made; values follow in order.
class NpyFile {
 public:
  explicit NpyFile(const std::string& path) : file_(path) {}

  void write_header(const std::vector<int64_t>& shape);
  void write(std::span<const float> values);
  void commit() { file_.commit(); }

 private:
  OutputFile file_;
};

}  // namespace edgellm
