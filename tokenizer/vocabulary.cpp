#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace edgellm::tok {

int32_t Vocabulary::id_limit(size_t n_tokens) {
  // Real vocabularies have few gaps; sixteen times leaves room for pruned ones.
  constexpr size_t kMax = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::min(kMax, 65536 + 16 * n_tokens));
}

Vocabulary::Vocabulary(StringArena contents, size_t n_ids, size_t n_tokens)
    : contents_(std::move(contents)), tokens_(n_ids) {
  by_content_.reserve(n_tokens);
}

bool Vocabulary::add_view(std::string_view content, int32_t id) {
  require(id >= 0 && static_cast<size_t>(id) < tokens_.size(), "Vocabulary: id out of range");
  Token& token = tokens_[static_cast<size_t>(id)];
  if (token.id >= 0 || !by_content_.insert(content, id)) return false;
  token.content = content;
  token.encoded = content;
  token.id = id;
  max_id_ = std::max(max_id_, id);
  return true;
}

void Vocabulary::set_encoded(int32_t id, std::string_view encoded) {
  tokens_[static_cast<size_t>(id)].encoded = bytes_.add(encoded);
}

void Vocabulary::set_bytes(int32_t id, std::string_view bytes) {
  tokens_[static_cast<size_t>(id)].bytes = bytes_.add(bytes);
}

const Token* Vocabulary::find(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return nullptr;
  const Token& token = tokens_[static_cast<size_t>(id)];
  return token.id < 0 ? nullptr : &token;
}

}  // namespace edgellm::tok
