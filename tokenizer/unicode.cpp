#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace edgellm::tok {

namespace {

constexpr char32_t kMaxCharacter = 0x10FFFF;

uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Punctuation that came after Unicode 8, up to Unicode 18. Digits and white space come from Rust's
// own tables, which are new, but punctuation from a crate that was made for Unicode 8.
constexpr CharacterRange kYoungPunctuation[] = {
    {0x061D, 0x061D},   {0x09FD, 0x09FD},   {0x0A76, 0x0A76},   {0x0C77, 0x0C77},
    {0x0C84, 0x0C84},   {0x1B4E, 0x1B4F},   {0x1B7D, 0x1B7F},   {0x2E43, 0x2E4F},
    {0x2E52, 0x2E5D},   {0x2E60, 0x2E63},   {0x10D6E, 0x10D6E}, {0x10EAD, 0x10EAD},
    {0x10ED0, 0x10ED0}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x113D4, 0x113D5},
    {0x113D7, 0x113D8}, {0x1144B, 0x1144F}, {0x1145A, 0x1145B}, {0x1145D, 0x1145D},
    {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946},
    {0x119E2, 0x119E2}, {0x11A3F, 0x11A46}, {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2},
    {0x11B00, 0x11B09}, {0x11BE1, 0x11BE1}, {0x11C41, 0x11C45}, {0x11C70, 0x11C71},
    {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2},
    {0x16D6D, 0x16D6F}, {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2}, {0x1E5FF, 0x1E5FF},
    {0x1E95E, 0x1E95F}};

// Characters that are Alphabetic although their category is So (Other_Alphabetic in PropList.txt):
// circled Latin letters and the squared ones beyond the BMP.
bool is_alphabetic_symbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace

bool is_in(std::span<const CharacterRange> ranges, char32_t c) {
  const auto above = std::upper_bound(
      ranges.begin(), ranges.end(), c,
      [](char32_t value, const CharacterRange& range) { return value < range.first; });
  return above != ranges.begin() && c <= std::prev(above)->last;
}

Utf8Unit read_utf8(std::string_view bytes, size_t offset) {
  using Kind = Utf8Unit::Kind;
  const uint8_t lead = byte_at(bytes, offset);
  if (lead < 0x80) return {Kind::kCharacter, 1, lead};

  // Table 3-7 of the Unicode standard: only the second byte's range depends on the first.
  size_t length = 0;
  uint8_t low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // overlong
    if (lead == 0xED) high = 0x9F;  // surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;   // overlong
    if (lead == 0xF4) high = 0x8F;  // beyond U+10FFFF
  } else {
    return {Kind::kInvalid, 1, 0};
  }

  char32_t character = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (offset + i == bytes.size()) return {Kind::kIncomplete, i, 0};
    const uint8_t byte = byte_at(bytes, offset + i);
    if (byte < low || byte > high) return {Kind::kInvalid, i, 0};
    character = (character << 6) | (byte & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Kind::kCharacter, length, character};
}

char32_t character_at(std::string_view text, size_t offset) {
  return read_utf8(text, offset).character;
}

size_t previous_character(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && is_continuation(byte_at(text, begin))) --begin;
  return begin;
}

char32_t character_before(std::string_view text, size_t end) {
  return character_at(text, previous_character(text, end));
}

void append_utf8(std::string& out, char32_t character) {
  require(character <= kMaxCharacter, "append_utf8: beyond U+10FFFF");
  std::array<utf8proc_uint8_t, 4> bytes{};
  const utf8proc_ssize_t n =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes.data());
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    out.push_back(static_cast<char>(bytes[static_cast<size_t>(i)]));
  }
}

bool is_white_space(char32_t c) {
  // The property is closed by Unicode's stability practice; no table knows it better.
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D || is_alphabetic_symbol(c);
  }
}

bool is_numeric(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  if (c == 0x166D || c == 0x111C9) return true;  // punctuation in Unicode 8, no more today
  switch (category(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return !is_in(kYoungPunctuation, c);
    default:
      return false;
  }
}

}  // namespace edgellm::tok

namespace edgellm {

size_t find_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Eight ASCII bytes at a time: most prompts are mostly ASCII.
    uint64_t word = 0;
    while (text.size() - i >= sizeof word) {
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & 0x8080808080808080u) != 0) break;
      i += sizeof word;
    }
    if (i == text.size()) break;
    const tok::Utf8Unit unit = tok::read_utf8(text, i);
    if (unit.kind != tok::Utf8Unit::Kind::kCharacter) return i;
    i += unit.n_bytes;
  }
  return std::string_view::npos;
}

}  // namespace edgellm
