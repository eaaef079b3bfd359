// The metadata of a `.tmac2` file: JSON on disk, this struct in the program. Writing and parsing
// stand in one file so that they stay in step.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/model_file.h"

namespace edgellm::model_io {

struct Metadata {
  ModelConfig config;
  TokenizerInfo tokenizer;
  Provenance provenance;
  std::optional<Golden> golden;
  std::vector<Section> sections;
};

std::string metadata_text(const Metadata& metadata);

// Every value checked for type and range, ids against the vocabulary, sections each by itself (not
// yet against the file or against each other). `path` is for messages.
Metadata parse_metadata(std::string_view text, const std::string& path);

}  // namespace edgellm::model_io
