// Which tensor of a checkpoint becomes which section of a `.tmac2` file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/import/safetensors.h"
#include "model/import/source.h"

namespace edgellm::model_io {

struct MappedNorm {
  std::string section;
  const CheckpointTensor* tensor = nullptr;  // null: gains of 1
  int64_t size = 0;
};

struct MappedMatrix {
  std::string section;
  const CheckpointTensor* weight = nullptr;
  const CheckpointTensor* scale = nullptr;  // of a matrix that is packed, or was
  int64_t rows = 0;
  int64_t cols = 0;
  // Of a file whose matrices have codes (RowCoding): one, or one for each row.
  std::vector<float> row_scales;
};

// Points into the source's checkpoint.
struct NameMap {
  std::vector<MappedNorm> norms;
  std::vector<MappedMatrix> matrices;
  const CheckpointTensor* embedding = nullptr;
  const CheckpointTensor* head = nullptr;  // also a copy of the embedding in a tied checkpoint
};

// Finds every tensor that the model needs, checked for dtype and shape. Throws Error for one that
// is missing, wrong, or no part of the model. Where the source does not know whether the head is
// tied, this finds out and writes it to the source's config.
NameMap map_names(ImportSource& source);

}  // namespace edgellm::model_io
