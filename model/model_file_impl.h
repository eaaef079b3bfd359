// What a ModelFile owns: the mapping, the parsed metadata, and the scales that the file keeps as
// f16 (kernels read float32).
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "model/metadata.h"
#include "model/model_file.h"

namespace edgellm {

// A whole file, read-only, in memory.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  void map(int fd, size_t bytes, const std::string& path);
  const std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Pages of [begin, begin + bytes) leave memory until they are read again.
  void release(const void* begin, size_t bytes) const;

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

namespace model_io {

struct OpenedModel {
  std::string path;
  Mapping mapping;
  uint64_t id = 0;
  uint64_t metadata_end = 0;  // in the file; zeros follow up to the first section
  Metadata metadata;
  Weights weights;
  std::deque<std::vector<float>> widened_scales;  // a deque: views into it stay valid as it grows
  std::string_view tokenizer_json;
};

}  // namespace model_io

struct ModelFile::Impl : model_io::OpenedModel {};

}  // namespace edgellm
