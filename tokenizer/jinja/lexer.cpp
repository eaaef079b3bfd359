#include "tokenizer/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/json_node.h"
#include "tokenizer/unicode.h"

namespace edgellm::jinja {
namespace {

// "\r\n" and "\r" count as "\n", and one newline at the end of the template is no part of it.
std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
// Names are copied into messages and compared with every variable.
constexpr size_t kMaxNameBytes = 256;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& where)
      : source_(normalize_newlines(source)), where_(where) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text_and_tag();
    add(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  bool looking_at(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }

  void add(Token::Kind kind, std::string text = "") {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
  }

  void advance(size_t n) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                    source_.begin() + static_cast<std::ptrdiff_t>(at_ + n), '\n'));
    at_ += n;
  }

  [[noreturn]] void fail(const std::string& what) const { fail_broken(where_, line_, what); }

  void skip_space() {
    while (at_ < source_.size()) {
      const tok::Utf8Unit unit = tok::read_utf8(source_, at_);
      if (!is_python_space(unit.character)) break;
      advance(unit.n_bytes);
    }
  }

  // The text up to the next tag, and the tag.
  void text_and_tag() {
    size_t open = at_;
    while (open < source_.size() &&
           !(source_[open] == '{' && open + 1 < source_.size() &&
             std::string_view("{%#").find(source_[open + 1]) != std::string_view::npos)) {
      ++open;
    }
    if (open == source_.size()) {
      add_text(source_.substr(at_));
      advance(open - at_);
      return;
    }
    const char kind = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    add_text(text_before_tag(open, kind != '{', sign));
    advance(open - at_ + 2);
    if (sign == '-' || sign == '+') advance(1);
    if (kind == '#') {
      comment();
    } else if (kind == '%') {
      if (!raw()) tag(Token::Kind::kBlockBegin, Token::Kind::kBlockEnd, "%}");
    } else {
      tag(Token::Kind::kOutputBegin, Token::Kind::kOutputEnd, "}}");
    }
  }

  std::string text_before_tag(size_t open, bool is_block, char sign) const {
    std::string text = source_.substr(at_, open - at_);
    if (sign == '-') {
      return strip(Text(text, Origin::kTemplate), Side::kRight).bytes();
    }
    if (!is_block || sign == '+') return text;
    const size_t newline = text.rfind('\n');
    const bool begins_line = newline != std::string::npos || at_ == 0 || source_[at_ - 1] == '\n';
    const size_t line_begin = newline == std::string::npos ? 0 : newline + 1;
    const Text last_line(text.substr(line_begin), Origin::kTemplate);
    if (begins_line && strip(last_line, Side::kBoth).empty()) text.resize(line_begin);
    return text;
  }

  void add_text(std::string text) {
    if (!text.empty()) add(Token::Kind::kText, std::move(text));
  }

  // Behind the two characters that close a tag: `sign` is the one before them.
  void after_close(char sign, bool trims) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && trims && looking_at("\n")) {
      advance(1);
    }
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment {# is not closed");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    advance(end + 2 - at_);
    after_close(sign, /*trims=*/true);
  }

  // {% raw %}...{% endraw %}: false, and nothing is read, where there is no such tag.
  bool raw() {
    const auto close_of = [&](std::string_view name, size_t from, char& sign) {
      const auto skip = [&](size_t i) {
        while (i < source_.size() &&
               std::string_view(" \t\n\v\f").find(source_[i]) != std::string_view::npos) {
          ++i;
        }
        return i;
      };
      size_t i = skip(from);
      if (source_.compare(i, name.size(), name) != 0) return std::string::npos;
      i = skip(i + name.size());
      sign = i < source_.size() ? source_[i] : '\0';
      if (sign == '-' || sign == '+') ++i;
      return source_.compare(i, 2, "%}") == 0 ? i + 2 : std::string::npos;
    };
    char sign = '\0';
    const size_t content = close_of("raw", at_, sign);
    if (content == std::string::npos) return false;
    advance(content - at_);
    after_close(sign, /*trims=*/false);
    for (size_t open = source_.find("{%", at_); open != std::string::npos;
         open = source_.find("{%", open + 2)) {
      const char open_sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
      const bool has_sign = open_sign == '-' || open_sign == '+';
      const size_t end = close_of("endraw", open + (has_sign ? 3 : 2), sign);
      if (end == std::string::npos) continue;
      add_text(text_before_tag(open, /*is_block=*/true, open_sign));
      advance(end - at_);
      after_close(sign, /*trims=*/true);
      return true;
    }
    fail("{% raw %} without {% endraw %}");
  }

  void tag(Token::Kind begin, Token::Kind end, std::string_view close) {
    add(begin);
    const int first_line = line_;
    std::string brackets;  // those that are open: a } of theirs closes no tag
    for (;;) {
      skip_space();
      if (at_ == source_.size()) {
        fail_broken(where_, first_line, "a tag is not closed; expected " + std::string(close));
      }
      const char c = source_[at_];
      const bool has_sign = c == '-' || c == '+';
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool closes =
          rest.starts_with(close) || (has_sign && rest.substr(1).starts_with(close) &&
                                      (c == '-' || end == Token::Kind::kBlockEnd));
      if (closes && brackets.empty()) {
        add(end);
        advance(close.size() + (has_sign ? 1 : 0));
        after_close(has_sign ? c : '\0', /*trims=*/end == Token::Kind::kBlockEnd);
        return;
      }
      token(brackets);
    }
  }

  void token(std::string& brackets) {
    const char c = source_[at_];
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
      if (end - at_ > kMaxNameBytes) {
        fail_unsupported(where_, line_,
                         "a name of more than " + std::to_string(kMaxNameBytes) + " bytes");
      }
      add(Token::Kind::kName, source_.substr(at_, end - at_));
      advance(end - at_);
    } else if (is_digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      string(c);
    } else {
      op(brackets);
    }
  }

  void op(std::string& brackets) {
    constexpr std::array<std::string_view, 6> kPairs = {"==", "!=", "<=", ">=", "//", "**"};
    constexpr std::string_view kSingles = "+-/*%~[](){}<>=.:|,;";
    std::string text(1, source_[at_]);
    for (const std::string_view pair : kPairs) {
      if (looking_at(pair)) text = pair;
    }
    if (text.size() == 1 && kSingles.find(text[0]) == std::string_view::npos) {
      fail("unexpected character " + tok::in_quotes(text));
    }
    constexpr std::string_view kOpening = "([{";
    constexpr std::string_view kClosing = ")]}";
    if (kOpening.find(text) != std::string_view::npos) brackets += text;
    const size_t closing = kClosing.find(text);
    if (closing != std::string_view::npos) {
      if (brackets.empty() || brackets.back() != kOpening[closing]) {
        fail("unexpected " + tok::in_quotes(text));
      }
      brackets.pop_back();
    }
    add(Token::Kind::kOperator, text);
    advance(text.size());
  }

  void number() {
    size_t end = at_;
    std::string digits;
    bool is_float = false;
    while (end < source_.size()) {
      const char c = source_[end];
      const bool has_next = end + 1 < source_.size();
      if (is_digit(c)) {
        digits += c;
      } else if (c == '.' && !is_float && has_next && is_digit(source_[end + 1])) {
        digits += c;
        is_float = true;
      } else if ((c == 'e' || c == 'E') && has_next && digits.find('e') == std::string::npos &&
                 (is_digit(source_[end + 1]) ||
                  ((source_[end + 1] == '-' || source_[end + 1] == '+') &&
                   end + 2 < source_.size() && is_digit(source_[end + 2])))) {
        digits += 'e';
        if (source_[end + 1] == '-') digits += '-';
        if (!is_digit(source_[end + 1])) ++end;
        is_float = true;
      } else if (c != '_') {
        break;
      }
      ++end;
    }
    if (end < source_.size() && is_name_start(source_[end])) {
      fail("a number is followed by " + tok::in_quotes(source_.substr(end, 1)));
    }
    Token token{.kind = is_float ? Token::Kind::kFloat : Token::Kind::kInteger,
                .line = line_,
                .text = digits};
    const char* const begin = digits.data();
    const auto result = is_float ? std::from_chars(begin, begin + digits.size(), token.number)
                                 : std::from_chars(begin, begin + digits.size(), token.integer);
    if (result.ec != std::errc()) fail("the number " + digits + " is too large");
    tokens_.push_back(std::move(token));
    advance(end - at_);
  }

  void string(char quote) {
    const int first_line = line_;
    std::string text;
    size_t i = at_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] == '\\' && i + 1 < source_.size()) {
        i = escape(i + 1, text);
      } else {
        text += source_[i++];
      }
    }
    if (i >= source_.size()) fail_broken(where_, first_line, "a string is not closed");
    advance(i + 1 - at_);
    add(Token::Kind::kString, std::move(text));
    tokens_.back().line = first_line;
  }

  // The escape whose letter is at `i`; returns what is behind it. As in Python, an unknown escape
  // is a backslash and its letter.
  size_t escape(size_t i, std::string& text) const {
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[i];
    if (c == '\n') return i + 1;
    const size_t letter = kLetters.find(c);
    if (letter != std::string_view::npos) {
      text += kValues[letter];
      return i + 1;
    }
    const size_t n_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const bool is_octal = c >= '0' && c <= '7';
    if (n_digits == 0 && !is_octal) {
      text += '\\';
      return i;
    }
    const size_t begin = is_octal ? i : i + 1;
    size_t end = begin;
    while (is_octal && end < begin + 3 && end < source_.size() && source_[end] >= '0' &&
           source_[end] <= '7') {
      ++end;
    }
    if (!is_octal) end = std::min(begin + n_digits, source_.size());
    uint32_t code = 0;
    const auto result =
        std::from_chars(source_.data() + begin, source_.data() + end, code, is_octal ? 8 : 16);
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    if (result.ptr != source_.data() + end || end < begin + n_digits || code > 0x10FFFF ||
        is_surrogate) {
      fail("the escape \\" + std::string(1, c) + " has no character");
    }
    tok::append_utf8(text, code);
    return end;
  }

  std::string source_;
  const std::string& where_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source, const std::string& where) {
  return Lexer(source, where).run();
}

void fail(ExitCode code, const std::string& where, int line, const std::string& what) {
  constexpr size_t kLongest = 400;  // bytes; a message's own text may be longer
  std::string message = what;
  if (message.size() > kLongest) {
    size_t end = kLongest;
    while ((static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;  // no half character
    message.resize(end);
    message += "...";
  }
  std::replace_if(
      message.begin(), message.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  throw Error(code, where + ", line " + std::to_string(line) + ": " + message);
}

void fail_broken(const std::string& where, int line, const std::string& what) {
  fail(ExitCode::kModelFile, where, line, what);
}

void fail_unsupported(const std::string& where, int line, const std::string& what) {
  fail(ExitCode::kUnsupported, where, line, what);
}

}  // namespace edgellm::jinja
