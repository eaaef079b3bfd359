// A string of a chat template that remembers, byte for byte, who wrote it: the template, or a
// message. Special tokens count only where the template wrote them, so every operation of the
// template language must carry the origin along.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace edgellm::jinja {

enum class Origin : char { kTemplate = 0, kMessage = 1 };

class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, Origin origin)
      : bytes_(bytes), origins_(bytes.size(), static_cast<char>(origin)) {}

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  Origin origin(size_t i) const { return static_cast<Origin>(origins_[i]); }

  void append(const Text& other) {
    bytes_ += other.bytes_;
    origins_ += other.origins_;
  }
  void append(std::string_view bytes, Origin origin) {
    bytes_ += bytes;
    origins_.append(bytes.size(), static_cast<char>(origin));
  }
  // As std::string::substr.
  Text slice(size_t begin, size_t n = std::string::npos) const {
    Text result;
    result.bytes_ = bytes_.substr(begin, n);
    result.origins_ = origins_.substr(begin, n);
    return result;
  }

 private:
  std::string bytes_;
  std::string origins_;  // an Origin for each byte
};

// What Python's str methods do, by characters. Texts are valid UTF-8.

bool is_python_space(char32_t c);  // str.isspace()

// Without the characters at the ends that are white space or, where `characters` is given, in it.
enum class Side { kBoth, kLeft, kRight };
Text strip(const Text& text, Side side, const std::string* characters = nullptr);

// By single characters, except for "ß": Python knows a hundred more that become several.
enum class Case {
  kUpper,
  kLower,
  kTitle,       // each word: what is behind a character that has no case
  kWords,       // each word: what is behind white space or one of -({[<, Jinja's title
  kCapitalize,  // the first character
};
Text change_case(const Text& text, Case to);

std::vector<size_t> character_offsets(std::string_view text);  // and the text's size behind them

// The offset of `needle` at or behind `from`, or npos; linear for any text.
size_t find_text(std::string_view text, std::string_view needle, size_t from = 0);

// What find_text() costs for all of the text, in units of work (Interpreter::charge).
size_t cost_of_search(const Text& text, std::string_view wanted);

// At most `limit` times. An empty `from` stands between all characters.
Text replace(const Text& text, const Text& from, const Text& to, size_t limit);

// At white space (`separator` null) or at a separator that is not empty, at most `limit` times,
// counted from the left or the right end.
std::vector<Text> split(const Text& text, const std::string* separator, size_t limit,
                        bool from_right);

std::vector<Text> split_lines(const Text& text, bool keep_ends);

}  // namespace edgellm::jinja
