// The metadata of a GGUF file as our hyperparameters. Strict, as read_hf_config is: a key of the
// architecture that changes the maths in a way edgellm does not compute is refused by name, and so
// is one that nobody here knows.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "model/import/gguf/file.h"

namespace edgellm::model_io::gguf {

struct GgufConfig {
  ModelConfig model;
  std::string architecture;     // as the file spells it
  bool heads_permuted = false;  // rows of q and k are in the order that llama.cpp's RoPE wants
  std::string assumption;       // what the file does not say and was concluded; may be empty
};

// `vocab` is the number of rows of the embedding; `tied`: there is no head of its own.
GgufConfig read_config(const GgufMetadata& metadata, int64_t vocab, bool tied,
                       const std::vector<std::string>& ignore_keys);

}  // namespace edgellm::model_io::gguf
