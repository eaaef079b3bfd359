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

// Where its files are. Each may be missing.
struct HfTokenizerFiles {
  std::string folder;          // of those with fixed names (path_of)
  std::string tokenizer_json;  // the path of what a folder has as tokenizer.json
  std::string config_json;     // the path of config.json; of its keys only ids are read

  // The files of a Hugging Face folder.
  static HfTokenizerFiles of_folder(const std::string& folder);
  // Of tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json,
  // chat_template.jinja, tokenizer.model and config.json.
  std::string path_of(const std::string& name) const;
};

// Whether a special token ends a turn of this chat template: it is one of those that are known to,
// and the template writes it.
bool ends_turn(const std::string& token, const std::string& chat_template);

HfTokenizer read_hf_tokenizer(const HfTokenizerFiles& files, const ModelConfig& config);

}  // namespace edgellm::model_io
