// The tensors of a Hugging Face checkpoint: model.safetensors, or the shards that
// model.safetensors.index.json names. Headers are checked before anything in them is believed;
// tensors are read in pieces with pread and never mapped, so that memory stays small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/file_io.h"

namespace edgellm::model_io {

struct CheckpointTensor {
  std::string name;
  std::string dtype;  // as in the file: "BF16", "U8", ...
  std::vector<int64_t> shape;
  size_t file = 0;      // index into Checkpoint::files()
  uint64_t offset = 0;  // from the start of that file
  uint64_t bytes = 0;
};

class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);

  const std::vector<InputFile>& files() const { return files_; }
  const std::map<std::string, CheckpointTensor>& tensors() const { return tensors_; }
  const CheckpointTensor* find(const std::string& name) const;
  const std::string& path_of(const CheckpointTensor& tensor) const {
    return files_[tensor.file].path();
  }
  // `bytes` bytes of the tensor from its byte `at`.
  void read(const CheckpointTensor& tensor, uint64_t at, void* to, size_t bytes) const;

 private:
  void add_file(const std::string& path);
  void add_shards(const std::string& folder, const std::string& index_path);

  std::vector<InputFile> files_;
  std::map<std::string, CheckpointTensor> tensors_;
};

}  // namespace edgellm::model_io
