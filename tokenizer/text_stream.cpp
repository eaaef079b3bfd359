#include "tokenizer/text_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace edgellm {

using namespace tok;

namespace {

constexpr char32_t kReplacement = 0xFFFD;

// Moves all that is decided from `bytes` to `text`, U+FFFD for each maximal invalid part. At the
// end an incomplete character is also decided.
void move_decided(std::string& bytes, bool at_end, std::string& text) {
  size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Unit unit = read_utf8(bytes, i);
    if (unit.kind == Utf8Unit::Kind::kIncomplete && !at_end) break;
    if (unit.kind == Utf8Unit::Kind::kCharacter) {
      text.append(bytes, i, unit.n_bytes);
    } else {
      append_utf8(text, kReplacement);
    }
    i += unit.n_bytes;
  }
  bytes.erase(0, i);
}

// The first place from which on the rest of `text` is the beginning of `stop`, but not all of it.
size_t find_beginning(const std::string& text, const std::string& stop) {
  size_t i = text.size() < stop.size() ? 0 : text.size() - stop.size() + 1;
  while (i < text.size() && text.compare(i, std::string::npos, stop, 0, text.size() - i) != 0) ++i;
  return i < text.size() ? i : std::string::npos;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings)
    : tokenizer_(&tokenizer), stop_strings_(std::move(stop_strings)) {
  for (const std::string& stop : stop_strings_) {
    require(!stop.empty(), "TextStream: an empty stop string");
    require(find_invalid_utf8(stop) == std::string::npos,
            "TextStream: a stop string that is not valid UTF-8");
  }
}

void TextStream::start_behind(std::span<const int32_t> ids) {
  std::string text_before;
  for (const int32_t id : ids) {
    if (!tokenizer_->is_special(id)) tokenizer_->decode_next(id, decode_state_, text_before);
  }
  tokenizer_->decode_end(decode_state_, text_before);
}

std::string TextStream::push(int32_t id) {
  if (stopped_ || tokenizer_->is_special(id)) return {};
  tokenizer_->decode_next(id, decode_state_, pending_bytes_);
  return release(false);
}

std::string TextStream::finish() {
  if (stopped_) return {};
  tokenizer_->decode_end(decode_state_, pending_bytes_);
  return release(true);
}

std::string TextStream::release(bool at_end) {
  move_decided(pending_bytes_, at_end, pending_text_);
  size_t match = std::string::npos;      // where the first stop string begins
  size_t beginning = std::string::npos;  // where one may begin that is not complete yet
  for (const std::string& stop : stop_strings_) {
    match = std::min(match, pending_text_.find(stop));
    if (!at_end) beginning = std::min(beginning, find_beginning(pending_text_, stop));
  }
  // A stop string that began before a complete one wins over it, if it completes: wait.
  std::string text = pending_text_.substr(0, std::min(match, beginning));
  if (match != std::string::npos && match <= beginning) {
    stopped_ = true;
    pending_bytes_.clear();
    pending_text_.clear();
  } else {
    pending_text_.erase(0, text.size());
  }
  return text;
}

}  // namespace edgellm
