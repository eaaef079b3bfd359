// A batch's command line and its requests, as the engine takes them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "apps/batch/flags.h"
#include "apps/batch/request.h"
#include "apps/session/chat_prompt.h"
#include "model/model_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

// Throws Error as sampling_options() does.
BatchDefaults batch_defaults(const BatchFlags& flags, const ModelFile& model);

// The flags that change answers, for the manifest: all others may differ from one run to the next.
nlohmann::json batch_answer_flags(const BatchFlags& flags, const BatchDefaults& defaults,
                                  int context);

// Requests become ids.
class BatchPrompts {
 public:
  // What is referred to must outlive the object. `tokenizer` may be null.
  BatchPrompts(const ModelFile& model, const Tokenizer* tokenizer, bool parse_special)
      : model_(model), tokenizer_(tokenizer), parse_special_(parse_special) {}

  // Throws Error where the model has no chat template, or none that can be used.
  const ChatPrompt& chat();

  // Throws Error (kUsage) for text or stop texts where the model has no tokenizer, and for a
  // conversation that the template refuses. Throws what chat() throws.
  std::vector<int32_t> ids(const BatchRequest& request);

 private:
  const ModelFile& model_;
  const Tokenizer* tokenizer_;
  bool parse_special_;
  std::optional<ChatPrompt> chat_;
};

}  // namespace edgellm
