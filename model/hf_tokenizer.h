// What a run must know about a Hugging Face tokenizer besides tokenizer.json itself: BOS, the set
// of ids that end an answer, the chat template, the sampling defaults.
#pragma once

#include <string>

#include "model/config.h"
#include "model/model_file.h"

namespace edgellm::model_io {

struct HfTokenizer {
  TokenizerInfo info;
  std::string tokenizer_json;  // the file's text, empty where there is none
};

// Reads config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
// special_tokens_map.json and chat_template.jinja of the folder; all but the first may be missing.
HfTokenizer read_hf_tokenizer(const std::string& folder, const ModelConfig& config);

}  // namespace edgellm::model_io
