// From messages to the ids of a prompt, by the chat template in the model's file. docs/chat.md says
// what users see of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model_file.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

struct ChatOptions {
  std::optional<std::string> system;
  bool parse_special = false;
};

class ChatPrompt {
 public:
  // Both must outlive the object. Throws Error: kUsage where the model has no chat template (a base
  // model) or no tokenizer, kUnsupported or kModelFile for a template that cannot be used.
  ChatPrompt(const ModelFile& model, const Tokenizer* tokenizer, bool parse_special);

  // The conversation and what stands before an answer. Errors: see ChatTemplate::render.
  ChatText render(std::span<const ChatMessage> messages) const;

  // The ids of the text from byte `begin` on. As transformers does it, nothing is added: a BOS
  // stands where the template writes one. Special tokens count in contents only if parse_special.
  std::vector<int32_t> encode(const ChatText& chat, size_t begin = 0) const;

 private:
  ChatTemplate template_;  // made first: it refuses a model without a tokenizer
  const Tokenizer& tokenizer_;
  ChatTemplate::SpecialTokens special_tokens_;
  bool parse_special_;
};

// A system message, if there is one, before one from the user.
std::vector<ChatMessage> first_messages(const std::optional<std::string>& system,
                                        const std::string& user);

}  // namespace edgellm
