// Reads a .safetensors file whole: for test data that we trust.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/canonical.h"

namespace edgellm::test {

struct TestTensor {
  std::string dtype;
  std::vector<int> shape;
  std::vector<uint8_t> bytes;

  int dim(int i) const { return shape.at(static_cast<size_t>(i)); }
  template <class T>
  std::vector<T> as() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> floats() const {
    if (dtype == "F32") return as<float>();
    if (dtype != "BF16") throw std::runtime_error("neither F32 nor BF16: " + dtype);
    std::vector<float> values;
    for (uint16_t half : as<uint16_t>()) values.push_back(from_bfloat16(half));
    return values;
  }
};

inline std::map<std::string, TestTensor> read_safetensors(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  uint64_t header_bytes = 0;
  if (all.size() < 8) throw std::runtime_error("too short: " + path.string());
  std::memcpy(&header_bytes, all.data(), 8);
  const nlohmann::json header = nlohmann::json::parse(all.substr(8, header_bytes));
  std::map<std::string, TestTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    TestTensor tensor;
    tensor.dtype = entry["dtype"];
    tensor.shape = entry["shape"].get<std::vector<int>>();
    const auto data = all.begin() + 8 + static_cast<ptrdiff_t>(header_bytes);
    tensor.bytes.assign(data + entry["data_offsets"][0].get<ptrdiff_t>(),
                        data + entry["data_offsets"][1].get<ptrdiff_t>());
    tensors[name] = std::move(tensor);
  }
  return tensors;
}

}  // namespace edgellm::test
