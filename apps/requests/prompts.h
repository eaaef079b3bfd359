// Requests become ids.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "apps/requests/request.h"
#include "apps/session/chat_prompt.h"
#include "model/model_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

// Any number of threads may use it.
class RequestPrompts {
 public:
  // What is referred to must outlive the object. `tokenizer` may be null.
  RequestPrompts(const ModelFile& model, const Tokenizer* tokenizer, bool parse_special)
      : model_(model), tokenizer_(tokenizer), parse_special_(parse_special) {}

  // Throws Error where the model has no chat template, or none that can be used.
  const ChatPrompt& chat();

  // The ids of each prompt; those of a chat are one. Throws Error (kUsage) for text or stop texts
  // where the model has no tokenizer, and for a conversation that the template refuses. Throws what
  // chat() throws.
  std::vector<std::vector<int32_t>> ids(const AnswerRequest& request);
  // The same of one prompt.
  std::vector<int32_t> ids_of(const RequestPrompt& prompt) const;

 private:
  const ModelFile& model_;
  const Tokenizer* tokenizer_;
  bool parse_special_;
  std::mutex mutex_;                // of the next
  std::optional<ChatPrompt> chat_;  // made when it is needed first
};

}  // namespace edgellm
