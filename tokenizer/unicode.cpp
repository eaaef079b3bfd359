#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

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

// Characters that are Alphabetic although their category is So (Other_Alphabetic in PropList.txt):
// circled Latin letters and the squared ones beyond the BMP.
bool is_alphabetic_symbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace

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
  switch (category(c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return true;
    default:
      return false;
  }
}

bool may_need_nfc(std::string_view text) {
  // Everything below U+0300 is its own NFC, and 0xCC is the first byte of U+0300.
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) >= 0xCC; });
}

std::string nfc(std::string_view text) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  // utf8proc_map() would do all of this in one call, but it orders combining marks by exchanging
  // neighbours: quadratic in a run of marks, minutes for a hostile megabyte.
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    i += unit.n_bytes;
    std::array<utf8proc_int32_t, 4> parts{};  // canonical decompositions have at most four
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(unit.character), parts.data(),
                                static_cast<utf8proc_ssize_t>(parts.size()), kOptions, nullptr);
    require(n >= 0 && n <= static_cast<utf8proc_ssize_t>(parts.size()), "nfc: decomposition");
    characters.insert(characters.end(), parts.begin(), parts.begin() + n);
  }

  const auto combining_class = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  for (auto run = characters.begin(); run != characters.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, characters.end(),
                                  [&](utf8proc_int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(run, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    run = end;
  }

  const utf8proc_ssize_t n_composed = utf8proc_normalize_utf32(
      characters.data(), static_cast<utf8proc_ssize_t>(characters.size()), kOptions);
  require(n_composed >= 0, "nfc: composition");
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < static_cast<size_t>(n_composed); ++i) {
    append_utf8(out, static_cast<char32_t>(characters[i]));
  }
  return out;
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
