#include "apps/inspect/npy.h"

#include <unistd.h>

#include <bit>

#include "apps/common/terminal.h"
#include "base/error.h"

namespace edgellm {

// Values are written as they lie in memory.
static_assert(std::endian::native == std::endian::little, "edgellm needs a little-endian machine");

NpyFile::NpyFile(const std::string& path) {
  if (path != "-") {
    file_.emplace(path);
  } else if (is_terminal(STDOUT_FILENO)) {
    throw Error(
        ExitCode::kUsage,
        "standard output is a terminal, which shows no .npy; name a file, or add > OUT.npy");
  }
}

void NpyFile::write_header(const std::vector<int64_t>& shape) {
  std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (size_t i = 0; i < shape.size(); ++i) {
    dict += (i == 0 ? "" : " ") + std::to_string(shape[i]) + ",";
  }
  // A Python tuple of one needs its comma, longer ones are written without.
  if (shape.size() > 1) dict.pop_back();
  dict += "), }";
  // Magic, version and length take 10 bytes; the whole header is a multiple of 64 and ends in \n.
  constexpr size_t kPreamble = 10;
  const size_t padded = (kPreamble + dict.size() + 1 + 63) / 64 * 64;
  dict.append(padded - kPreamble - dict.size() - 1, ' ');
  dict += '\n';

  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  header += dict;
  write_bytes(header.data(), header.size());
}

void NpyFile::write(std::span<const float> values) {
  write_bytes(values.data(), values.size_bytes());
}

void NpyFile::commit() {
  if (file_) file_->commit();
}

void NpyFile::write_bytes(const void* data, size_t bytes) {
  if (file_) {
    file_->write(data, bytes);
  } else {
    write_stdout({static_cast<const char*>(data), bytes});
  }
}

}  // namespace edgellm
