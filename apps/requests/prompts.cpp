#include "apps/requests/prompts.h"

#include "apps/session/prompt.h"
#include "base/error.h"

namespace edgellm {

const ChatPrompt& RequestPrompts::chat() {
  const std::lock_guard guard(mutex_);
  if (!chat_) chat_.emplace(model_, tokenizer_, parse_special_);
  return *chat_;
}

std::vector<int32_t> RequestPrompts::ids_of(const RequestPrompt& prompt) const {
  if (!prompt.ids.empty()) return prompt.ids;
  if (tokenizer_ == nullptr) {
    throw Error(ExitCode::kUsage,
                "the model has no tokenizer, so it takes no text; give the prompt as a list of "
                "token ids");
  }
  return encode_prompt(*tokenizer_, model_.tokenizer(), prompt.text);
}

std::vector<std::vector<int32_t>> RequestPrompts::ids(const AnswerRequest& request) {
  if (tokenizer_ == nullptr && !request.stop.empty()) {
    throw Error(ExitCode::kUsage, "the model has no tokenizer, so stop has no meaning");
  }
  std::vector<std::vector<int32_t>> ids;
  if (request.is_chat) ids.push_back(chat().encode(chat().render(request.messages)));
  for (const RequestPrompt& prompt : request.prompts) ids.push_back(ids_of(prompt));
  return ids;
}

}  // namespace edgellm
