// The tensors of a checkpoint. That of a Hugging Face folder: model.safetensors, or the shards that
// model.safetensors.index.json names. Headers are checked before anything in them is believed;
// tensors are read in pieces with pread and never mapped, so that memory stays small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "model/import/gguf/types.h"
#include "model/weights.h"

namespace edgellm::model_io {

// Tensors of other files: of older ones (older_file.h), whose rows have a scale each, and of GGUF.
enum class RowCoding : uint8_t {
  kNone,         // plain values of `dtype`
  kTm2,          // per row a float16 scale and the codes of t2
  kTmacTernary,  // all codes, four a byte, 0, 1, 2 for -1, 0, +1; the scales elsewhere
  kTmacInt8,     // int8 values; the scales elsewhere
  kGguf,         // a type of GGUF
};

// What must be known of a GGUF tensor to read its rows (gguf/rows.h).
struct GgufLayout {
  gguf::Type type = gguf::Type::kF32;
  // Rows of an attention head whose two halves take turns in the file (the order that llama.cpp's
  // RoPE wants); 0 where rows are as in Hugging Face's checkpoints.
  int64_t head_rows = 0;
  int64_t scale_block = 0;          // of a matrix: the inputs that share a scale
  DType table_dtype = DType::kF16;  // of an embedding or head: what it is written as
};

struct CheckpointTensor {
  std::string name;
  std::string dtype;  // as in the file: "BF16", "U8", ...
  std::vector<int64_t> shape;
  size_t file = 0;      // index into Checkpoint::files()
  uint64_t offset = 0;  // from the start of that file
  uint64_t bytes = 0;
  RowCoding coding = RowCoding::kNone;
  uint64_t scales_offset = 0;  // of kTmac*: float32 [rows], from the start of the file
  GgufLayout gguf;             // of kGguf
};

class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);
  // Tensors that were found in a file of another format.
  Checkpoint(InputFile file, std::map<std::string, CheckpointTensor> tensors);
  Checkpoint(std::vector<InputFile> files, std::map<std::string, CheckpointTensor> tensors);

  const std::vector<InputFile>& files() const { return files_; }
  const std::map<std::string, CheckpointTensor>& tensors() const { return tensors_; }
  const CheckpointTensor* find(const std::string& name) const;
  const std::string& path_of(const CheckpointTensor& tensor) const {
    return files_[tensor.file].path();
  }
  // `bytes` bytes of the tensor from its byte `at`.
  void read(const CheckpointTensor& tensor, uint64_t at, void* to, size_t bytes) const;
  // The scales of rows [first, first + n) of a tensor that keeps them apart.
  void read_scales(const CheckpointTensor& tensor, uint64_t first, float* to, size_t n) const;

 private:
  void add_file(const std::string& path);
  void add_shards(const std::string& folder, const std::string& index_path);

  std::vector<InputFile> files_;
  std::map<std::string, CheckpointTensor> tensors_;
};

}  // namespace edgellm::model_io
