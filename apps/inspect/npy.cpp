#include "apps/inspect/npy.h"

#include <bit>

namespace edgellm {

// Values are written as they lie in memory.
static_assert(std::endian::native == std::endian::little, "edgellm needs a little-endian machine");

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
  file_.write(header.data(), header.size());
}

void NpyFile::write(std::span<const float> values) {
  file_.write(values.data(), values.size_bytes());
}

}  // namespace edgellm
