// The tokenizer of a GGUF file, rebuilt as the tokenizer.json from which such files are made, and
// what stands beside it: BOS, stop ids, chat template, sampling defaults.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "model/import/gguf/file.h"
#include "model/import/hf_tokenizer.h"

namespace edgellm::model_io::gguf {

// `notes` gets a line for what the file does not say and was concluded. Throws Error (kUnsupported)
// for a kind of tokenizer that cannot be rebuilt, by name.
HfTokenizer read_tokenizer(const GgufMetadata& metadata, const ModelConfig& config,
                           std::vector<std::string>& notes);

}  // namespace edgellm::model_io::gguf
