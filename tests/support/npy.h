// Reads the .npy files of the fixtures: version 1, little-endian float32, C order.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

namespace edgellm::test {

struct Npy {
  std::vector<size_t> shape;
  std::vector<float> values;
};

inline Npy read_npy(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (all.size() < 10 || all.compare(0, 8, std::string("\x93NUMPY\x01\x00", 8)) != 0) {
    throw std::runtime_error("not an .npy file of version 1: " + path.string());
  }
  uint16_t header_bytes;
  std::memcpy(&header_bytes, all.data() + 8, 2);
  const std::string header = all.substr(10, header_bytes);
  if (header.find("'<f4'") == std::string::npos ||
      header.find("'fortran_order': False") == std::string::npos) {
    throw std::runtime_error("not float32 in C order: " + path.string());
  }
  Npy npy;
  const size_t open = header.find('(');
  const std::string shape = header.substr(open, header.find(')') - open);
  const std::regex number("[0-9]+");
  size_t count = 1;
  for (std::sregex_iterator it(shape.begin(), shape.end(), number), end; it != end; ++it) {
    npy.shape.push_back(std::stoul(it->str()));
    count *= npy.shape.back();
  }
  if (all.size() != 10u + header_bytes + 4 * count) {
    throw std::runtime_error("size and shape disagree: " + path.string());
  }
  npy.values.resize(count);
  std::memcpy(npy.values.data(), all.data() + 10 + header_bytes, 4 * count);
  return npy;
}

}  // namespace edgellm::test
