#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/unicode.h"

namespace edgellm::tok {

namespace {

constexpr size_t kAlphabetEnd = 256 + 68;  // the first character beyond the alphabet

struct Alphabet {
  std::array<std::string, 256> character;     // byte -> UTF-8
  std::array<int16_t, kAlphabetEnd> byte_of;  // character -> byte, -1 for none

  Alphabet() {
    byte_of.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool stands_for_itself =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
      const char32_t c = stands_for_itself ? static_cast<char32_t>(byte) : next++;
      append_utf8(character[static_cast<size_t>(byte)], c);
      byte_of[c] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string_view byte_to_alphabet(uint8_t byte) { return alphabet().character[byte]; }

std::string to_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) out += byte_to_alphabet(static_cast<uint8_t>(c));
  return out;
}

bool from_alphabet(std::string_view text, std::string& out) {
  const Alphabet& table = alphabet();
  out.clear();
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    i += unit.n_bytes;
    if (unit.kind != Utf8Unit::Kind::kCharacter || unit.character >= kAlphabetEnd) return false;
    const int16_t byte = table.byte_of[unit.character];
    if (byte < 0) return false;
    out.push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace edgellm::tok
