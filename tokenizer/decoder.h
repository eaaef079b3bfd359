// Tokens to text, in the steps that a tokenizer.json lists: ByteLevel, ByteFallback, Metaspace,
// Replace, Strip, Fuse and sequences of them.
//
// Hugging Face's decoders turn a list of strings into another list. Here the tokens go through all
// steps one by one, so that text comes out while tokens still come in; a step holds back what it
// cannot decide yet. The pieces together are what the whole list gives.
//
// Immutable after construction; threads share it, each with its own DecodeState.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/decode_state.h"
#include "tokenizer/json_node.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/replacement.h"

namespace edgellm::tok {

class Decoder {
 public:
  // No decoder (null) undoes the byte-level alphabet for a `byte_level` vocabulary, where Hugging
  // Face's tokenizers put a space between all tokens; those of other vocabularies get that space.
  // Throws Error: kModelFile for what is broken, kUnsupported for what is unknown.
  Decoder(const JsonNode& node, bool byte_level);

  // Appends what is decided with one more token. Behind ByteLevel this is bytes, possibly part of
  // a character.
  void push(std::string_view token, DecodeState& state, std::string& out) const;

  // No more tokens: appends what was held back. More may come all the same, as behind that text.
  void finish(DecodeState& state, std::string& out) const;

  // Replaces `out` by the bytes of a token that stands in the middle of a text.
  void token_bytes(std::string_view token, std::string& out) const;

 private:
  struct ByteLevel {};     // written in GPT-2's alphabet
  struct ByteFallback {};  // runs of "<0xE4>" are UTF-8
  struct Spaced {};        // a space between all tokens
  struct Strip {
    std::string character;  // in UTF-8
    size_t start, stop;     // the most that are stripped
    bool whole_text;        // behind Fuse, otherwise of each token
  };
  struct Spaces {
    Metaspace settings;
    bool whole_text;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Spaced, Strip, Spaces, Replacement>;

  void add_steps(const JsonNode& node, bool& fused);
  void feed(size_t step, std::string_view token, DecodeState& state, std::string& out) const;
  void release_bytes(size_t step, DecodeState& state, std::string& out) const;
  void feed_stripped(size_t step, const Strip& strip, std::string_view text, DecodeState& state,
                     std::string& out) const;

  std::vector<Step> steps_;
};

// The byte that a token like "<0xE4>" stands for, or -1.
int fallback_byte(std::string_view token);

// The token for a byte: "<0xE4>".
std::string fallback_token(uint8_t byte);

}  // namespace edgellm::tok
