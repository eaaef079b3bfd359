// The settings of a Metaspace, SentencePiece's way with spaces: a space is written as a visible
// character (U+2581 in all known files), and a text or each word may get one in front. It is a
// pre-tokenizer and a decoder.
#pragma once

#include <string>

#include "tokenizer/json_node.h"

namespace edgellm::tok {

struct Metaspace {
  enum class Prepend { kFirst, kAlways, kNever };

  // Throws Error, kModelFile. Files written before `prepend_scheme` have `add_prefix_space` alone.
  explicit Metaspace(const JsonNode& node);

  std::string replacement;  // one character, in UTF-8
  Prepend prepend;
  bool split;  // into words that begin with the replacement
};

// The one character that `node` holds, in UTF-8; otherwise throws Error, kModelFile.
std::string one_character(const JsonNode& node);

}  // namespace edgellm::tok
