// The white space that an answer in a chat begins with: templates end with "Assistant:", and the
// model continues with " Hello".
#pragma once

#include <algorithm>
#include <string>

namespace edgellm {

class LeadingSpace {
 public:
  // The next piece of an answer without what still belongs to the white space before its text.
  std::string dropped_from(const std::string& piece) {
    if (!at_front_) return piece;
    const size_t begin = std::min(piece.find_first_not_of(" \t\r\n"), piece.size());
    at_front_ = begin == piece.size();
    return piece.substr(begin);
  }

 private:
  bool at_front_ = true;
};

}  // namespace edgellm
