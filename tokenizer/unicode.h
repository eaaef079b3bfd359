// UTF-8 and the few Unicode properties that a tokenizer.json can ask about.
//
// The properties are those of the Rust crates behind Hugging Face's tokenizers (regex: \s and \w of
// added tokens; char::is_numeric: Digits), taken from utf8proc's tables. Characters younger than
// the installed utf8proc or Oniguruma (Debian 12: Unicode 14) are unassigned here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace edgellm::tok {

// What stands at one place of a byte string.
struct Utf8Unit {
  enum class Kind {
    kCharacter,   // a whole character
    kIncomplete,  // the text ends inside a character: more bytes may complete it
    kInvalid,     // bytes that no continuation can turn into a character
  };
  Kind kind;
  size_t n_bytes;      // kInvalid: the maximal subpart, which one U+FFFD stands for
  char32_t character;  // for kCharacter
};

// Reads at `offset`, which must be inside `bytes`. Strict: surrogates, overlong forms and values
// beyond U+10FFFF are invalid.
Utf8Unit read_utf8(std::string_view bytes, size_t offset);

// The character that begins at `offset` or ends before `end`, in text known to be valid.
char32_t character_at(std::string_view text, size_t offset);
char32_t character_before(std::string_view text, size_t end);

// The offset of the first byte of the character that ends before `end`, in valid text.
size_t previous_character(std::string_view text, size_t end);

void append_utf8(std::string& out, char32_t character);

// Characters from `first` to `last`.
struct CharacterRange {
  char32_t first, last;
};
bool is_in(std::span<const CharacterRange> ranges, char32_t c);  // in ascending order

bool is_white_space(char32_t c);  // property White_Space
bool is_word(char32_t c);     // Alphabetic, Mark, Decimal_Number, Connector_Punctuation, joiners
bool is_numeric(char32_t c);  // categories Nd, Nl, No
bool is_punctuation(char32_t c);  // ASCII punctuation and symbols, categories P*

}  // namespace edgellm::tok
