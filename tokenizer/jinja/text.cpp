#include "tokenizer/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "tokenizer/unicode.h"

namespace edgellm::jinja {

using tok::read_utf8;

namespace {

// The character at `offset`, and how many bytes it takes.
std::pair<char32_t, size_t> read(std::string_view text, size_t offset) {
  const tok::Utf8Unit unit = read_utf8(text, offset);
  return {unit.character, unit.n_bytes};
}

bool contains_character(const std::string& characters, char32_t wanted) {
  for (size_t i = 0; i < characters.size();) {
    const auto [c, n] = read(characters, i);
    if (c == wanted) return true;
    i += n;
  }
  return false;
}

bool is_cased(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

void append_in_case(std::string& out, char32_t c, Case to) {
  constexpr char32_t kSharpS = 0xDF;
  const auto code = static_cast<utf8proc_int32_t>(c);
  if (to == Case::kLower) {
    tok::append_utf8(out, static_cast<char32_t>(utf8proc_tolower(code)));
  } else if (c == kSharpS) {
    out += to == Case::kUpper || to == Case::kWords ? "SS" : "Ss";
  } else if (to == Case::kUpper || to == Case::kWords) {
    tok::append_utf8(out, static_cast<char32_t>(utf8proc_toupper(code)));
  } else {
    tok::append_utf8(out, static_cast<char32_t>(utf8proc_totitle(code)));
  }
}

bool is_initial(Case to, bool is_first, char32_t before) {
  if (is_first || to == Case::kUpper || to == Case::kLower) return true;
  if (to == Case::kTitle) return !is_cased(before);
  return to == Case::kWords &&
         (is_python_space(before) ||
          std::u32string_view(U"-({[<").find(before) != std::u32string_view::npos);
}

}  // namespace

bool is_python_space(char32_t c) { return tok::is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

Text strip(const Text& text, Side side, const std::string* characters) {
  const auto goes = [&](char32_t c) {
    return characters == nullptr ? is_python_space(c) : contains_character(*characters, c);
  };
  const std::string& bytes = text.bytes();
  size_t begin = 0;
  size_t end = bytes.size();
  while (side != Side::kRight && begin < end) {
    const auto [c, n] = read(bytes, begin);
    if (!goes(c)) break;
    begin += n;
  }
  while (side != Side::kLeft && begin < end && goes(tok::character_before(bytes, end))) {
    end = tok::previous_character(bytes, end);
  }
  return text.slice(begin, end - begin);
}

Text change_case(const Text& text, Case to) {
  Text result;
  char32_t before = 0;
  for (size_t i = 0; i < text.size();) {
    const auto [c, n] = read(text.bytes(), i);
    std::string changed;
    append_in_case(changed, c, is_initial(to, i == 0, before) ? to : Case::kLower);
    result.append(changed, text.origin(i));
    before = c;
    i += n;
  }
  return result;
}

std::vector<size_t> character_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); i += read(text, i).second) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

size_t find_text(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string::npos;
  if (needle.empty()) return from;
  // Not std::string::find, whose time is the product of both lengths.
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return std::string::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t cost_of_search(const Text& text, std::string_view wanted) {
  // memmem() may compare most of a needle of up to 255 bytes at every place.
  constexpr size_t kLongestCompared = 255;
  return (text.size() + wanted.size()) / 16 * (1 + std::min(wanted.size(), kLongestCompared) / 16);
}

Text replace(const Text& text, const Text& from, const Text& to, size_t limit) {
  Text result;
  size_t begin = 0;
  if (from.empty()) {
    for (const size_t offset : character_offsets(text.bytes())) {
      if (limit == 0) break;
      result.append(text.slice(begin, offset - begin));
      result.append(to);
      begin = offset;
      --limit;
    }
  }
  while (!from.empty() && limit > 0) {
    const size_t found = find_text(text.bytes(), from.bytes(), begin);
    if (found == std::string::npos) break;
    result.append(text.slice(begin, found - begin));
    result.append(to);
    begin = found + from.size();
    --limit;
  }
  result.append(text.slice(begin));
  return result;
}

namespace {

// The first byte from `at` on of a character that is white space, or is none; the size if there is
// no such character.
size_t skip_forward(std::string_view text, size_t at, bool spaces) {
  while (at < text.size()) {
    const auto [c, n] = read(text, at);
    if (is_python_space(c) != spaces) break;
    at += n;
  }
  return at;
}

// The same to the left: the end of such a character in front of `end`, or 0.
size_t skip_backward(std::string_view text, size_t end, bool spaces) {
  while (end > 0 && is_python_space(tok::character_before(text, end)) == spaces) {
    end = tok::previous_character(text, end);
  }
  return end;
}

std::vector<Text> split_at_space(const Text& text, size_t limit) {
  std::vector<Text> words;
  const std::string& bytes = text.bytes();
  size_t begin = skip_forward(bytes, 0, /*spaces=*/true);
  while (begin < bytes.size()) {
    // What is behind the limit is one word, white space and all.
    const size_t end =
        words.size() == limit ? bytes.size() : skip_forward(bytes, begin, /*spaces=*/false);
    words.push_back(text.slice(begin, end - begin));
    begin = skip_forward(bytes, end, /*spaces=*/true);
  }
  return words;
}

std::vector<Text> split_at_space_from_right(const Text& text, size_t limit) {
  std::vector<Text> words;
  const std::string& bytes = text.bytes();
  size_t end = skip_backward(bytes, bytes.size(), /*spaces=*/true);
  while (end > 0) {
    const size_t begin = words.size() == limit ? 0 : skip_backward(bytes, end, /*spaces=*/false);
    words.push_back(text.slice(begin, end - begin));
    end = skip_backward(bytes, begin, /*spaces=*/true);
  }
  std::reverse(words.begin(), words.end());
  return words;
}

std::vector<Text> split_from_right(const Text& text, const std::string& separator, size_t limit) {
  // Both backwards, because only a search forwards is linear for every text.
  const std::string backwards(text.bytes().rbegin(), text.bytes().rend());
  const std::string wanted(separator.rbegin(), separator.rend());
  std::vector<Text> parts;
  size_t begin = 0;  // of what is left, counted from the right
  while (parts.size() < limit) {
    const size_t found = find_text(backwards, wanted, begin);
    if (found == std::string::npos) break;
    parts.push_back(text.slice(text.size() - found, found - begin));
    begin = found + wanted.size();
  }
  parts.push_back(text.slice(0, text.size() - begin));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::vector<Text> split(const Text& text, const std::string* separator, size_t limit,
                        bool from_right) {
  if (separator == nullptr) {
    return from_right ? split_at_space_from_right(text, limit) : split_at_space(text, limit);
  }
  if (from_right) return split_from_right(text, *separator, limit);
  std::vector<Text> parts;
  size_t begin = 0;
  while (parts.size() < limit) {
    const size_t found = find_text(text.bytes(), *separator, begin);
    if (found == std::string::npos) break;
    parts.push_back(text.slice(begin, found - begin));
    begin = found + separator->size();
  }
  parts.push_back(text.slice(begin));
  return parts;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  const auto ends_line = [](char32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
  };
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const auto [c, n] = read(text.bytes(), i);
    size_t next = i + n;
    if (ends_line(c)) {
      if (c == '\r' && next < text.size() && text.bytes()[next] == '\n') ++next;
      lines.push_back(text.slice(begin, (keep_ends ? next : i) - begin));
      begin = next;
    }
    i = next;
  }
  if (begin < text.size()) lines.push_back(text.slice(begin));
  return lines;
}

}  // namespace edgellm::jinja
