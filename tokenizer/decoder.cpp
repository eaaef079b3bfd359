#include "tokenizer/decoder.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

namespace {

constexpr const char* kSupportedDecoders =
    "null, ByteLevel, ByteFallback, Metaspace, Replace, Strip, Fuse, Sequence";

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// What a token may become beside a multiple of its length.
constexpr size_t kSlack = 1024;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// Cuts up to `n` times `character` off one end.
size_t count_front(std::string_view text, std::string_view character, size_t n) {
  size_t count = 0;
  while (count < n && text.substr(count * character.size()).starts_with(character)) ++count;
  return count;
}

size_t count_back(std::string_view text, std::string_view character, size_t n) {
  size_t count = 0;
  while (count < n && text.ends_with(character)) {
    text.remove_suffix(character.size());
    ++count;
  }
  return count;
}

// Spaces in place of the replacement; none at all if `drop`.
std::string spaced(const Metaspace& settings, std::string_view text, bool drop) {
  std::string out;
  const std::string& replacement = settings.replacement;
  size_t begin = 0;
  for (size_t at = text.find(replacement); at != std::string_view::npos;
       at = text.find(replacement, begin)) {
    out.append(text, begin, at - begin);
    if (!drop) out += ' ';
    begin = at + replacement.size();
  }
  out.append(text, begin);
  return out;
}

std::string strip_token(std::string_view token, std::string_view character, size_t start,
                        size_t stop) {
  token.remove_prefix(count_front(token, character, start) * character.size());
  token.remove_suffix(count_back(token, character, stop) * character.size());
  return std::string(token);
}

}  // namespace

int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string fallback_token(uint8_t byte) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
}

Decoder::Decoder(const JsonNode& node, bool byte_level) {
  if (node.is_null()) {
    steps_.push_back(byte_level ? Step(ByteLevel{}) : Step(Spaced{}));
    return;
  }
  bool fused = false;
  add_steps(node, fused);
}

void Decoder::add_steps(const JsonNode& node, bool& fused) {
  const std::string& type = node.at("type").string();
  const bool behind_byte_level =
      !steps_.empty() && std::holds_alternative<ByteLevel>(steps_.back());
  if (type == "Fuse") {
    fused = true;
  } else if (type == "Sequence") {
    const JsonNode members = node.at("decoders");
    for (size_t i = 0; i < members.size(); ++i) add_steps(members.at(i), fused);
  } else if (behind_byte_level) {
    node.refuse(in_quotes(type) + " behind ByteLevel", "Fuse behind ByteLevel");
  } else if (type == "ByteLevel" || type == "ByteFallback") {
    if (fused) node.refuse(type + " behind Fuse", type + " before Fuse");
    steps_.push_back(type == "ByteLevel" ? Step(ByteLevel{}) : Step(ByteFallback{}));
  } else if (type == "Metaspace") {
    steps_.push_back(Spaces{Metaspace(node), fused});
  } else if (type == "Replace") {
    Replacement replacement(node);
    if (fused && !replacement.is_of_one_character()) {
      node.refuse("Replace of more than one character behind Fuse", "Replace before Fuse");
    }
    steps_.push_back(std::move(replacement));
  } else if (type == "Strip") {
    steps_.push_back(Strip{one_character(node.at("content")),
                           static_cast<size_t>(node.at("start").id()),
                           static_cast<size_t>(node.at("stop").id()), fused});
  } else {
    node.refuse("the decoder " + in_quotes(type), kSupportedDecoders);
  }
  check_steps(steps_.size(), node);
}

void Decoder::push(std::string_view token, DecodeState& state, std::string& out) const {
  state.steps.resize(steps_.size());
  feed(0, token, state, out);
}

void Decoder::feed(size_t index, std::string_view token, DecodeState& state,
                   std::string& out) const {
  if (index == steps_.size()) {
    out += token;
    return;
  }
  const Step& step = steps_[index];
  DecodeState::Step& own = state.steps[index];
  const bool is_first = own.n_tokens++ == 0;
  std::string text;
  if (std::holds_alternative<ByteLevel>(step)) {
    feed(index + 1, from_alphabet(token, text) ? text : token, state, out);
  } else if (std::holds_alternative<ByteFallback>(step)) {
    const int byte = fallback_byte(token);
    if (byte >= 0) {
      own.held += static_cast<char>(byte);
      return;
    }
    release_bytes(index, state, out);
    feed(index + 1, token, state, out);
  } else if (std::holds_alternative<Spaced>(step)) {
    feed(index + 1, is_first ? token : text.assign(" ").append(token), state, out);
  } else if (const Strip* strip = std::get_if<Strip>(&step)) {
    if (strip->whole_text) {
      feed_stripped(index, *strip, token, state, out);
    } else {
      feed(index + 1, strip_token(token, strip->character, strip->start, strip->stop), state, out);
    }
  } else if (const Spaces* spaces = std::get_if<Spaces>(&step)) {
    // The first token loses the space that encoding put in front, and with it any other.
    const bool drop =
        (is_first || spaces->whole_text) && spaces->settings.prepend != Metaspace::Prepend::kNever;
    feed(index + 1, spaced(spaces->settings, token, drop), state, out);
  } else {
    std::get<Replacement>(step).apply(token, growth_limit(token.size(), kSlack), text);
    feed(index + 1, text, state, out);
  }
}

// A run of byte tokens is text if all of it is: otherwise every byte of it counts as one that could
// not be read. So nothing of a run can be shown before its end.
void Decoder::release_bytes(size_t index, DecodeState& state, std::string& out) const {
  std::string bytes;
  bytes.swap(state.steps[index].held);
  if (bytes.empty()) return;
  if (find_invalid_utf8(bytes) == std::string_view::npos) {
    feed(index + 1, bytes, state, out);
    return;
  }
  for (size_t i = 0; i < bytes.size(); ++i) feed(index + 1, kReplacementCharacter, state, out);
}

// Cuts the front of the whole text as it comes by, and holds back what may be cut off its end.
void Decoder::feed_stripped(size_t index, const Strip& strip, std::string_view text,
                            DecodeState& state, std::string& out) const {
  DecodeState::Step& own = state.steps[index];
  if (own.at_front) {
    const size_t n = count_front(text, strip.character, strip.start - own.n_cut);
    own.n_cut += n;
    text.remove_prefix(n * strip.character.size());
    if (text.empty()) return;
    own.at_front = false;
  }
  std::string all;
  all.swap(own.held);
  all += text;
  const size_t n_held = count_back(all, strip.character, strip.stop) * strip.character.size();
  own.held.assign(all, all.size() - n_held);
  all.resize(all.size() - n_held);
  feed(index + 1, all, state, out);
}

void Decoder::finish(DecodeState& state, std::string& out) const {
  for (size_t index = 0; index < state.steps.size(); ++index) {
    if (std::holds_alternative<ByteFallback>(steps_[index])) release_bytes(index, state, out);
    // What Strip still holds is the end that it cuts off.
    state.steps[index].held.clear();
  }
}

void Decoder::token_bytes(std::string_view token, std::string& out) const {
  out.assign(token);
  std::string next;
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) {
      if (!from_alphabet(out, next)) continue;
    } else if (std::holds_alternative<ByteFallback>(step)) {
      const int byte = fallback_byte(out);
      if (byte < 0) continue;
      out.assign(1, static_cast<char>(byte));
      return;
    } else if (std::holds_alternative<Spaced>(step)) {
      next.assign(" ").append(out);
    } else if (const Strip* strip = std::get_if<Strip>(&step)) {
      if (strip->whole_text) continue;
      next = strip_token(out, strip->character, strip->start, strip->stop);
    } else if (const Spaces* spaces = std::get_if<Spaces>(&step)) {
      const bool drop =
          spaces->whole_text && spaces->settings.prepend != Metaspace::Prepend::kNever;
      next = spaced(spaces->settings, out, drop);
    } else {
      std::get<Replacement>(step).apply(out, growth_limit(token.size(), kSlack), next);
    }
    out.swap(next);
  }
}

}  // namespace edgellm::tok
