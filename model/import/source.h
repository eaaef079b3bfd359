// Where a conversion begins: a checkpoint and what is known of its model.
#pragma once

#include <string>
#include <vector>

#include "model/convert.h"
#include "model/import/hf_config.h"
#include "model/import/hf_tokenizer.h"
#include "model/import/safetensors.h"

namespace edgellm::model_io {

struct ImportSource {
  std::string path;                        // of the folder or file, for messages
  std::string name;                        // for the provenance
  std::string config_path;                 // of config.json; may be empty
  std::string sizes_from = "config.json";  // what says which shape a tensor should have
  HfConfig hf;
  std::vector<float> rope_divisors =
      {};                    // [head_dim / 2] of what scales RoPE's frequencies, or empty
  bool tie_is_known = true;  // else the head is tied if it equals the embedding
  HfTokenizer tokenizer;
  std::string tokenizer_path;  // of tokenizer.json
  Checkpoint checkpoint;
  std::vector<std::string> texts;  // paths of all other files that were read
  std::string licence;
  std::vector<std::string> notes = {};  // what was concluded from a file and may be of interest
};

// The tokenizer.json at `path`, or of the folder `path`, and what belongs to it.
HfTokenizerFiles given_tokenizer_files(const std::string& path, const std::string& config_json);

// Those of the tokenizer's files that exist.
std::vector<std::string> tokenizer_texts(const HfTokenizerFiles& files);

// A Hugging Face folder.
ImportSource hf_source(const std::string& path, const std::vector<std::string>& ignore_keys);

// A TM2 or TMAC file.
ImportSource older_source(const std::string& path, const OlderFileOptions& older,
                          const std::vector<std::string>& ignore_keys);

}  // namespace edgellm::model_io
