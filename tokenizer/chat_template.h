// A model's chat template: a conversation in, the text that the model was trained to continue out.
//
// Templates are Jinja as Hugging Face's transformers renders it (apply_chat_template): the part of
// the language that published models use (docs/chat.md), with the same rules for white space. What
// a template asks beyond that is refused by name with its line (Error, kUnsupported); what is no
// Jinja, or goes wrong while it runs, is Error (kModelFile); a template that refuses a conversation
// itself (raise_exception: roles in the wrong order, no system message) is Error (kUsage).
//
// Immutable after construction; any number of threads may use it.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace edgellm {

struct ChatMessage {
  std::string role;     // "system", "user" or "assistant"; trusted, unlike the content
  std::string content;  // UTF-8
};

// The text of a conversation, and where in it the contents of messages stand: there a special
// token's text is nothing but text (Tokenizer::encode).
struct ChatText {
  std::string text;
  std::vector<TextRange> contents;  // ascending, without overlap
};

class ChatTemplate {
 public:
  // Names of special tokens and their text: {"bos_token", "<s>"}, ...
  using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

  // `where` names the template in messages.
  ChatTemplate(std::string_view source, const std::string& where);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `add_generation_prompt` adds what stands before an answer. `now` is the time that a template
  // may write into its prompt; the local time where it is empty. Messages that are not UTF-8 are
  // Error (kUsage).
  ChatText render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                  const SpecialTokens& special_tokens,
                  const std::optional<std::tm>& now = std::nullopt) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace edgellm
