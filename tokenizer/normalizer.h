// What happens to text before it is cut into words, in the steps that a tokenizer.json lists: NFC,
// NFD, NFKC, NFKD, Prepend, Replace, Strip, ByteLevel and sequences of them.
//
// Immutable after construction; threads share it.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_node.h"
#include "tokenizer/normal_form.h"
#include "tokenizer/replacement.h"

namespace edgellm::tok {

class Normalizer {
 public:
  // Null does nothing. Throws Error: kModelFile for what is broken, kUnsupported for what is
  // unknown.
  explicit Normalizer(const JsonNode& node);

  // False if nothing changes. Otherwise replaces `out`, which must not be what `text` is a view of.
  // `text` is valid UTF-8. Throws Error (kUnsupported) for a text that grows beyond growth_limit().
  bool apply(std::string_view text, std::string& out) const;

 private:
  struct Prepend {
    std::string text;
  };
  struct Strip {
    bool left, right;
  };
  struct ToAlphabet {};  // bytes written in GPT-2's alphabet
  using Step = std::variant<NormalForm, Prepend, Replacement, Strip, ToAlphabet>;

  void add_steps(const JsonNode& node);
  bool apply_step(const Step& step, std::string_view text, size_t limit, std::string& out) const;

  std::vector<Step> steps_;
  std::string where_;  // in the file
};

}  // namespace edgellm::tok
