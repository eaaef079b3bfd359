#include "apps/session/chat_prompt.h"

#include <algorithm>

#include "apps/session/prompt.h"
#include "base/error.h"

namespace edgellm {
namespace {

const std::string& template_of(const ModelFile& model, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) {
    throw Error(ExitCode::kUsage, model.path() +
                                      " has no tokenizer, so there is no chat with it; edgellm run "
                                      "takes ids (--ids-file)");
  }
  const std::string& text = model.tokenizer().chat_template;
  if (text.empty()) {
    throw Error(ExitCode::kUsage,
                model.path() + " has no chat template: it is a base model, which continues text " +
                    "but was not made to answer; use edgellm run without --chat");
  }
  return text;
}

ChatTemplate::SpecialTokens special_tokens_of(const ModelFile& model, const Tokenizer& tokenizer) {
  const TokenizerInfo& info = model.tokenizer();
  if (info.special_tokens) return {info.special_tokens->begin(), info.special_tokens->end()};
  // An older file says only which id is the BOS.
  for (const char* name : {"eos_token", "unk_token", "pad_token"}) {
    if (info.chat_template.find(name) == std::string::npos) continue;
    throw Error(ExitCode::kUnsupported, model.path() + " does not say what the " + name +
                                            " of its chat template is; convert the model again");
  }
  if (!info.bos) return {};
  return {{"bos_token", std::string(tokenizer.token_bytes(*info.bos))}};
}

}  // namespace

ChatPrompt::ChatPrompt(const ModelFile& model, const Tokenizer* tokenizer, bool parse_special)
    : template_(template_of(model, tokenizer), model.path() + ": chat template"),
      tokenizer_(*tokenizer),
      special_tokens_(special_tokens_of(model, *tokenizer)),
      parse_special_(parse_special) {}

ChatText ChatPrompt::render(std::span<const ChatMessage> messages) const {
  return template_.render(messages, /*add_generation_prompt=*/true, special_tokens_);
}

std::vector<int32_t> ChatPrompt::encode(const ChatText& chat, size_t begin) const {
  const std::string_view text = std::string_view(chat.text).substr(begin);
  if (parse_special_) return tokenizer_.encode(text, /*add_special=*/false);
  std::vector<TextRange> plain;
  for (const TextRange& range : chat.contents) {
    if (range.end > begin)
      plain.push_back({std::max(range.begin, begin) - begin, range.end - begin});
  }
  return tokenizer_.encode(text, plain);
}

std::vector<ChatMessage> first_messages(const std::optional<std::string>& system,
                                        const std::string& user) {
  std::vector<ChatMessage> messages;
  if (system) messages.push_back({"system", *system});
  messages.push_back({"user", user});
  return messages;
}

}  // namespace edgellm
