#include "apps/batch/prompts.h"

#include "apps/session/prompt.h"
#include "base/error.h"

namespace edgellm {

BatchDefaults batch_defaults(const BatchFlags& flags, const ModelFile& model) {
  return {.max_tokens = flags.answer.max_tokens,
          .stop = flags.answer.stop,
          .sampling = sampling_options(flags.sampling, model.tokenizer(), model.path()),
          .ignore_eos = flags.ignore_eos,
          .chat = flags.chat,
          .system = flags.chat_options.system};
}

nlohmann::json batch_answer_flags(const BatchFlags& flags, const BatchDefaults& defaults,
                                  int context) {
  nlohmann::json json = {{"--ctx", context},
                         {"--kv-type", flags.engine.kv_type},
                         {"--max-tokens", defaults.max_tokens},
                         {"--stop", defaults.stop},
                         {"--ignore-eos", defaults.ignore_eos},
                         {"--text", flags.is_text},
                         {"--chat", defaults.chat},
                         {"--system", nullptr},
                         {"--parse-special", flags.chat_options.parse_special},
                         {"sampling", to_json(defaults.sampling)}};
  if (defaults.system) json["--system"] = *defaults.system;
  return json;
}

const ChatPrompt& BatchPrompts::chat() {
  if (!chat_) chat_.emplace(model_, tokenizer_, parse_special_);
  return *chat_;
}

std::vector<int32_t> BatchPrompts::ids(const BatchRequest& request) {
  if (tokenizer_ == nullptr && !request.stop.empty()) {
    throw Error(ExitCode::kUsage, "the model has no tokenizer, so stop has no meaning");
  }
  if (!request.prompt_ids.empty()) return request.prompt_ids;
  if (tokenizer_ == nullptr) {
    throw Error(ExitCode::kUsage,
                "the model has no tokenizer, so it takes no text; give the prompt as a list of "
                "token ids");
  }
  if (!request.is_chat) return encode_prompt(*tokenizer_, model_.tokenizer(), request.prompt);
  return chat().encode(chat().render(request.messages));
}

}  // namespace edgellm
