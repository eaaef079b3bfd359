// What a tokenizer knows about single tokens: content, bytes, id, whether it is special.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/string_arena.h"
#include "tokenizer/string_index.h"

namespace edgellm::tok {

struct Token {
  std::string_view content;  // as the file spells it
  std::string_view bytes;    // what it decodes to in the middle of a text
  std::string_view encoded;  // the content, or for an added token what the normalizer makes of it
  int32_t id = -1;           // -1: the vocabulary has no such id
  bool special = false;
};

class Vocabulary {
 public:
  // Ids must be near dense, so that a file of n tokens costs memory in proportion to n.
  static int32_t id_limit(size_t n_tokens);

  // Makes room for ids below `n_ids`; `contents` owns the contents added later as views.
  Vocabulary(StringArena contents, size_t n_ids, size_t n_tokens);

  // False if the content or the id is taken. `content` must live in the arena.
  bool add_view(std::string_view content, int32_t id);
  // The same for a content from elsewhere.
  bool add_copy(std::string_view content, int32_t id) {
    return add_view(contents_.add(content), id);
  }

  int32_t id_of(std::string_view content) const { return by_content_.find(content); }
  const Token* find(int32_t id) const;  // null if there is none
  Token& operator[](int32_t id) { return tokens_[static_cast<size_t>(id)]; }

  // Sets what a token is in encoded text, and what it decodes to.
  void set_encoded(int32_t id, std::string_view encoded);
  void set_bytes(int32_t id, std::string_view bytes);

  int32_t max_id() const { return max_id_; }
  const std::vector<Token>& tokens() const { return tokens_; }  // by id, gaps included

 private:
  StringArena contents_, bytes_;
  std::vector<Token> tokens_;
  StringIndex by_content_;
  int32_t max_id_ = -1;
};

}  // namespace edgellm::tok
