// GPT-2's alphabet: every byte has a printable character that stands for it in a vocabulary file.
// Printable Latin-1 bytes stand for themselves; the other 68 are U+0100 and up, in byte order
// (so a space is "Ġ" and a line feed "Ċ").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace edgellm::tok {

// The character for a byte, in UTF-8.
std::string_view byte_to_alphabet(uint8_t byte);

// `bytes` written in the alphabet.
std::string to_alphabet(std::string_view bytes);

// Replaces `out` by the bytes that `text` (valid UTF-8) stands for; false if a character of it is
// not in the alphabet.
bool from_alphabet(std::string_view text, std::string& out);

}  // namespace edgellm::tok
