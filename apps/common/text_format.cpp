#include "apps/common/text_format.h"

namespace edgellm {
std::string wrapped(std::string_view text, size_t width, size_t indent) {
  std::string lines;
  size_t columns = 0;  // of the present line; 0: nothing is on it yet
  while (!text.empty()) {
    const size_t begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) break;
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find(' '));
    if (columns > 0 && columns + 1 + word.size() > width) {
      lines += "\n" + std::string(indent, ' ');
      columns = indent;
    } else if (columns > 0) {
      lines += ' ';
      ++columns;
    }
    lines += word;
    columns += word.size();
    text.remove_prefix(word.size());
  }
  return lines + "\n";
}

std::string definition(std::string_view heading, std::string_view text, size_t column,
                       size_t width) {
  constexpr size_t kMargin = 2;
  std::string line = std::string(kMargin, ' ') + std::string(heading);
  line += line.size() + kMargin > column ? "\n" + std::string(column, ' ')
                                         : std::string(column - line.size(), ' ');
  // Wrapped as if the heading were spaces, so that the first line is as short as the others.
  const std::string body = wrapped(text, width > column ? width - column : 1, 0);
  for (const char c : body) {
    line += c;
    if (c == '\n') line += std::string(column, ' ');
  }
  line.resize(line.size() - column);
  return line;
}

}  // namespace edgellm
