// Turns a stream of ids into text that may be shown at once.
//
// Held back are the bytes of a UTF-8 character that is not complete yet (with byte fallback: of a
// run of bytes), and text that may turn out to be the beginning of a stop string. What push()
// returns is final.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace edgellm {

class TextStream {
 public:
  // `tokenizer` must outlive the stream. Stop strings that are empty or not valid UTF-8 are a
  // contract violation. The one that begins first in the text wins, even where another completes
  // first.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings);

  // What comes stands behind the text of `ids`, so a space that would be left out in front stays
  // ("Once upon" + " a time"). Before the first push().
  void start_behind(std::span<const int32_t> ids);

  // Appends one id and returns the text that became final, valid UTF-8. Special tokens add none.
  // Bytes that can no longer become a character are replaced by U+FFFD.
  std::string push(int32_t id);

  // No more ids: returns what was held back, an incomplete character as U+FFFD.
  std::string finish();

  // A stop string was met. The text ends before it, and push() returns nothing more.
  bool stopped() const { return stopped_; }

 private:
  std::string release(bool at_end);

  const Tokenizer* tokenizer_;
  std::vector<std::string> stop_strings_;
  DecodeState decode_state_;
  std::string pending_bytes_;  // not yet a whole UTF-8 character
  std::string pending_text_;   // valid UTF-8 that may begin a stop string
  bool stopped_ = false;
};

}  // namespace edgellm
