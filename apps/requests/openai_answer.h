// Answers as OpenAI's API has them, with what edgellm knows besides (docs/batch.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/scheduler.h"
#include "model/model_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

using OrderedJson = nlohmann::ordered_json;

struct IdLogprobs {
  int32_t id = -1;
  std::optional<TokenLogprobs> logprobs;  // none of the first id of a prompt
};

// One of the answers to a request.
struct AnswerChoice {
  std::optional<std::string> text;  // empty where the model has no tokenizer
  SequenceResult result;
  std::optional<uint64_t> seed;      // of a sampled answer
  std::vector<IdLogprobs> logprobs;  // of the text's tokens: a stop token has none
};

struct RequestAnswer {
  bool is_chat = false;
  std::vector<std::vector<int32_t>> prompts;  // their ids, one at least
  bool with_token_ids = false;
  bool with_logprobs = false;
  std::vector<AnswerChoice> choices;  // one at least to each prompt, in the order of the prompts
};

// The body of a response. `id` is without the prefix that OpenAI's ids have. `tokenizer` may be
// null.
OrderedJson answer_body(const std::string& id, const RequestAnswer& answer, const ModelFile& model,
                        const Tokenizer* tokenizer);

// ---- The parts of such a body -----------------------------------------------------------------

// OpenAI's words for why an answer ended: "stop" or "length".
const char* openai_finish_reason(FinishReason reason);

OrderedJson chat_logprobs(std::span<const IdLogprobs> logprobs, const Tokenizer* tokenizer);

// OpenAI's older form: lists side by side. `offset`: the characters of the text before the first of
// these tokens; afterwards, behind the last.
OrderedJson completion_logprobs(std::span<const IdLogprobs> logprobs, const Tokenizer* tokenizer,
                                int64_t& offset);

OrderedJson usage_json(size_t n_prompt, size_t n_answer, int n_cached);

// What OpenAI's form has no place for.
OrderedJson own_fields(const AnswerChoice& choice);

// `id`, `object`, `created`, `model` and `system_fingerprint`: the head of a body or of an event.
OrderedJson answer_head(const std::string& id, const char* object, const ModelFile& model);

// The name under which `edgellm run NAME` knows the model.
std::string model_name(const ModelFile& model);

// ---- Errors -----------------------------------------------------------------------------------

struct RequestError {
  std::string code;  // "invalid_request", "duplicate_id", ...
  std::string message;
  bool is_ours = false;  // not the request's fault: status 500, not 400
};
RequestError request_error(ExitCode code, const std::string& message);

// {"error": {...}}, as OpenAI has it.
OrderedJson error_body(const RequestError& error);

}  // namespace edgellm
