#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

namespace {

uint8_t as_byte(char c) { return static_cast<uint8_t>(c); }

// Byte order; std::string's own is the same, but says so only for char_traits<char>::lt.
bool content_less(const AddedToken& a, const AddedToken& b) { return a.content < b.content; }

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool word_before = begin > 0 && is_word(character_before(text, begin));
  const bool word_behind = end < text.size() && is_word(character_at(text, end));
  return !word_before && !word_behind;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), content_less);
  for (const AddedToken& token : tokens_) {
    require(!token.content.empty() && token.content.size() <= kMaxTokenBytes,
            "AddedTokenMatcher: length of a token");
    ++first_[size_t{as_byte(token.content[0])} + 1];
  }
  for (size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
}

// Narrows the sorted tokens to those that continue like the text, byte by byte. The shortest of
// them comes first, so a token that ends here is the front one.
const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t offset) const {
  const uint8_t lead = as_byte(text[offset]);
  auto begin = tokens_.begin() + first_[lead];
  auto end = tokens_.begin() + first_[size_t{lead} + 1];
  const AddedToken* longest = nullptr;
  for (size_t depth = 1; begin != end; ++depth) {
    if (begin->content.size() == depth) {
      longest = &*begin;
      ++begin;
    }
    if (offset + depth == text.size()) break;
    const uint8_t next = as_byte(text[offset + depth]);
    begin = std::lower_bound(begin, end, next, [depth](const AddedToken& token, uint8_t byte) {
      return as_byte(token.content[depth]) < byte;
    });
    end = std::upper_bound(begin, end, next, [depth](uint8_t byte, const AddedToken& token) {
      return byte < as_byte(token.content[depth]);
    });
  }
  return longest;
}

void AddedTokenMatcher::split(std::string_view text, std::vector<Section>& sections,
                              const Counts& counts) const {
  sections.clear();
  size_t text_begin = 0;  // where the text that is not in a section yet begins
  for (size_t offset = 0; offset < text.size() && !tokens_.empty();) {
    const uint8_t lead = as_byte(text[offset]);
    if (first_[lead] == first_[size_t{lead} + 1]) {
      ++offset;
      continue;
    }
    const AddedToken* token = longest_at(text, offset);
    if (token == nullptr) {
      ++offset;
      continue;
    }
    if (counts && token->special && !counts(*token, offset)) {
      ++offset;
      continue;
    }
    size_t begin = offset;
    size_t end = offset + token->content.size();
    // The search continues behind the match itself, even if that is dropped: a token that begins in
    // white space which rstrip swallows below is found all the same.
    offset = end;
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    if (token->lstrip) {
      begin = std::max(begin, text_begin);
      while (begin > text_begin && is_white_space(character_before(text, begin))) {
        begin = previous_character(text, begin);
      }
    }
    if (token->rstrip) {
      while (end < text.size() && is_white_space(character_at(text, end))) {
        end += read_utf8(text, end).n_bytes;
      }
    }
    // Nothing is left of a token in space that the one before it has swallowed.
    if (begin >= end) continue;
    if (text_begin < begin) {
      sections.push_back({Section::kText, text.substr(text_begin, begin - text_begin)});
    }
    sections.push_back({token->id, {}});
    text_begin = end;
  }
  if (text_begin < text.size()) sections.push_back({Section::kText, text.substr(text_begin)});
}

}  // namespace edgellm::tok
