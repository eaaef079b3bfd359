#include "base/text.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace edgellm {
namespace {

void append_escaped(std::string& out, unsigned char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

// Bytes of the UTF-8 sequence that starts at `text`, 0 where it is not one (RFC 3629).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (!follows(1) || !follows(2)) return 0;
    if (first == 0xE0 && byte(1) < 0xA0) return 0;  // longer than needed
    if (first == 0xED && byte(1) > 0x9F) return 0;  // a surrogate
    return 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (!follows(1) || !follows(2) || !follows(3)) return 0;
    if (first == 0xF0 && byte(1) < 0x90) return 0;
    if (first == 0xF4 && byte(1) > 0x8F) return 0;  // above U+10FFFF
    return 4;
  }
  return 0;
}

}  // namespace

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else {
      append_escaped(out, byte);
    }
  }
  if (text.size() > limit) out += "...";
  return out;
}

std::string printable_path(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const size_t length = utf8_length(path);
    const auto first = static_cast<unsigned char>(path[0]);
    if (length == 0 || first < 0x20 || first == 0x7F) {
      append_escaped(out, first);
      path.remove_prefix(1);
    } else {
      out += path.substr(0, length);
      path.remove_prefix(length);
    }
  }
  return out;
}

std::string hex64(uint64_t value) {
  std::string out(16, '0');
  for (size_t i = 0; i < 16; ++i) out[i] = "0123456789abcdef"[(value >> (60 - 4 * i)) & 15];
  return out;
}

std::optional<uint64_t> parse_hex64(std::string_view text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  if (text.size() != 16) return std::nullopt;
  const auto [stop, status] = std::from_chars(text.data(), end, value, 16);
  if (status != std::errc() || stop != end) return std::nullopt;
  return value;
}

double shortest_decimal(float value) {
  std::array<char, 32> text{};
  const auto [end, status] = std::to_chars(text.data(), text.data() + text.size(), value);
  require(status == std::errc(), "a float is at most 32 characters");
  double result = 0;
  std::from_chars(text.data(), end, result);
  return result;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i == 8) return out + ", ...]";
    if (i > 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

std::string lower_ascii(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::string join(const std::vector<std::string>& items, std::string_view separator) {
  std::string out;
  for (const std::string& item : items) {
    if (!out.empty()) out += separator;
    out += item;
  }
  return out;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }));
}

}  // namespace edgellm
