// What the value of `tokenizer.ggml.pre` means: how llama.cpp's converter calls the way in which a
// byte-level tokenizer cuts text into words.
#pragma once

#include <optional>
#include <string_view>

#include "base/json.h"

namespace edgellm::model_io::gguf {

struct PreTokenizerKind {
  Json pre_tokenizer;          // as tokenizer.json has it
  Json normalizer;             // null or an object
  bool ignore_merges = false;  // a word that is a token is taken whole
  bool add_bos = false;        // where the file does not say it
};

// Empty for a name that edgellm does not know.
std::optional<PreTokenizerKind> find_pre_tokenizer(std::string_view name);

}  // namespace edgellm::model_io::gguf
