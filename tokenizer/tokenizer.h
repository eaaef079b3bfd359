// Text to token ids and back, as a Hugging Face `tokenizer.json` describes it.
//
// BPE, byte-level (GPT-2, LLaMA-3, Qwen) or of characters with byte fallback (LLaMA-2, Mistral):
// cut at added tokens, normalise, split by the pre-tokenizer's regular expressions (Oniguruma, the
// engine of Hugging Face's own tokenizers) or spaces, merge pairs by rank, then the
// post-processor's template. What a file asks for and this code does not know is refused by name
// (Error, kUnsupported); broken JSON is Error (kModelFile).
//
// A Tokenizer is immutable after construction; any number of threads may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/decode_state.h"

namespace edgellm {

// A stretch of a text, in bytes.
struct TextRange {
  size_t begin, end;
};

class Tokenizer {
 public:
  // `json` is the text of a tokenizer.json. `where` names it in error messages.
  static Tokenizer from_json(std::string_view json, const std::string& where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids of `text`, which must be valid UTF-8 (Error, kUsage, with the byte offset otherwise).
  // Special-token strings in the text become their ids. `add_special` runs the post-processor's
  // template (for most models: a BOS in front).
  std::vector<int32_t> encode(std::string_view text, bool add_special) const;

  // The same without the template, but special tokens count only outside of `plain` (ascending,
  // without overlap): one that has a byte in it is text like any other, and is split and merged
  // with what stands around it. Added tokens that are not special are found everywhere.
  std::vector<int32_t> encode(std::string_view text, std::span<const TextRange> plain) const;

  // The text of the ids, as the file's decoder makes it. Of a byte-level vocabulary these are the
  // bytes that the ids stand for, which may end or begin inside a UTF-8 character: see TextStream.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // The same one by one: appends what is decided with one more id, and at the end what was held
  // back. The first text of a SentencePiece vocabulary loses its space, as in decode().
  void decode_next(int32_t id, DecodeState& state, std::string& out) const;
  void decode_end(DecodeState& state, std::string& out) const;

  // The bytes of one id as they appear in the middle of decoded text; empty for an id the
  // vocabulary lacks.
  std::string_view token_bytes(int32_t id) const;

  bool is_special(int32_t id) const;
  int32_t max_id() const;  // the largest id known

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// The offset of the first byte that is not valid UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

}  // namespace edgellm
