#include "apps/batch/defaults.h"

namespace edgellm {

BatchDefaults batch_defaults(const BatchFlags& flags, const ModelFile& model) {
  BatchDefaults defaults;
  defaults.max_tokens = flags.answer.max_tokens;
  defaults.stop = flags.answer.stop;
  defaults.sampling = sampling_options(flags.sampling, model.tokenizer(), model.path());
  defaults.ignore_eos = flags.ignore_eos;
  defaults.chat = flags.chat;
  defaults.system = flags.chat_options.system;
  return defaults;
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

}  // namespace edgellm
