#include "apps/requests/openai_answer.h"

#include <chrono>

#include "apps/common/exit_codes.h"
#include "apps/common/version.h"
#include "apps/session/cached_model.h"
#include "base/text.h"

namespace edgellm {
namespace {

// The text of a token, and its bytes: a token may be a part of a character.
OrderedJson token_json(int32_t id, double logprob, const Tokenizer* tokenizer) {
  OrderedJson json = {{"token", nullptr}, {"logprob", logprob}, {"bytes", nullptr}};
  if (tokenizer == nullptr) return json;
  const std::string_view bytes = tokenizer->token_bytes(id);
  json["token"] = std::string(bytes);
  json["bytes"] = OrderedJson::array();
  for (const char byte : bytes) json["bytes"].push_back(static_cast<unsigned char>(byte));
  return json;
}

// A name for a token in lists and as a key: those that are not UTF-8 as OpenAI writes them, so that
// two of them differ.
std::string token_name(int32_t id, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return "token_id:" + std::to_string(id);
  const std::string_view bytes = tokenizer->token_bytes(id);
  if (is_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto value = static_cast<unsigned char>(byte);
    name += {'\\', 'x', kDigits[value >> 4], kDigits[value & 15]};
  }
  return name;
}

OrderedJson choice_json(const RequestAnswer& answer, size_t index, const Tokenizer* tokenizer) {
  const AnswerChoice& given = answer.choices[index];
  const OrderedJson text = given.text ? OrderedJson(*given.text) : OrderedJson(nullptr);
  OrderedJson choice = {{"index", index}};
  if (answer.is_chat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  if (answer.with_logprobs) {
    int64_t offset = 0;
    choice["logprobs"] = answer.is_chat ? chat_logprobs(given.logprobs, tokenizer)
                                        : completion_logprobs(given.logprobs, tokenizer, offset);
  }
  choice["finish_reason"] = openai_finish_reason(given.result.finish_reason);
  if (answer.with_token_ids) choice["token_ids"] = given.result.token_ids;
  return choice;
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

const char* openai_finish_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
    case FinishReason::kContext:
      return "length";
    case FinishReason::kStop:
    case FinishReason::kStopString:
    case FinishReason::kInterrupted:
      break;
  }
  return "stop";
}

OrderedJson chat_logprobs(std::span<const IdLogprobs> list, const Tokenizer* tokenizer) {
  OrderedJson content = OrderedJson::array();
  for (const auto& [id, logprobs] : list) {
    OrderedJson token = token_json(id, logprobs->logprob, tokenizer);
    token["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& top : logprobs->top) {
      token["top_logprobs"].push_back(token_json(top.id, top.logprob, tokenizer));
    }
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson completion_logprobs(std::span<const IdLogprobs> list, const Tokenizer* tokenizer,
                                int64_t& offset) {
  OrderedJson tokens = OrderedJson::array();
  OrderedJson of_tokens = OrderedJson::array();
  OrderedJson tops = OrderedJson::array();
  OrderedJson offsets = OrderedJson::array();
  for (const auto& [id, logprobs] : list) {
    tokens.push_back(token_name(id, tokenizer));
    of_tokens.push_back(logprobs ? OrderedJson(logprobs->logprob) : OrderedJson(nullptr));
    OrderedJson top = nullptr;
    if (logprobs) {
      top = OrderedJson::object();
      for (const TokenLogprob& one : logprobs->top) {
        top[token_name(one.id, tokenizer)] = one.logprob;
      }
    }
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    const std::string_view bytes = tokenizer == nullptr ? "" : tokenizer->token_bytes(id);
    offset += static_cast<int64_t>(count_characters(bytes));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(of_tokens)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

OrderedJson usage_json(size_t n_prompt, size_t n_answer, int n_cached) {
  return {{"prompt_tokens", n_prompt},
          {"completion_tokens", n_answer},
          {"total_tokens", n_prompt + n_answer},
          {"prompt_tokens_details", {{"cached_tokens", n_cached}}}};
}

OrderedJson own_fields(const AnswerChoice& choice) {
  const SequenceResult& result = choice.result;
  OrderedJson own = {{"finish_reason", to_string(result.finish_reason)}};
  if (choice.seed) own["seed"] = *choice.seed;
  own["timings"] = {{"queued_ns", result.queued_ns},
                    {"prompt_eval_ns", result.prefill_ns},
                    {"ttft_ns", result.ttft_ns},
                    {"total_ns", result.total_ns}};
  return own;
}

OrderedJson answer_head(const std::string& id, const char* object, const ModelFile& model) {
  return {{"id", id},
          {"object", object},
          {"created", unix_seconds()},
          {"model", model_name(model)},
          {"system_fingerprint", "edgellm-" + build_info().version + "-" + hex64(model.id())}};
}

std::string model_name(const ModelFile& model) {
  if (std::string name = conversion_name(model.path()); !name.empty()) return name;
  const std::string path = model.path().substr(model.path().rfind('/') + 1);
  const size_t dot = path.rfind(".tmac2");
  return dot == std::string::npos ? path : path.substr(0, dot);
}

OrderedJson answer_body(const std::string& id, const RequestAnswer& answer, const ModelFile& model,
                        const Tokenizer* tokenizer) {
  OrderedJson choices = OrderedJson::array();
  OrderedJson own = OrderedJson::array();
  size_t n_answer = 0;
  for (size_t i = 0; i < answer.choices.size(); ++i) {
    choices.push_back(choice_json(answer, i, tokenizer));
    own.push_back(own_fields(answer.choices[i]));
    n_answer += answer.choices[i].result.token_ids.size();
  }
  size_t n_prompt = 0;
  int n_cached = 0;
  const size_t n_of_each = answer.choices.size() / answer.prompts.size();
  for (size_t i = 0; i < answer.prompts.size(); ++i) {
    n_prompt += answer.prompts[i].size();
    n_cached += answer.choices[i * n_of_each].result.n_shared_prompt_ids;
  }
  OrderedJson body = answer_head((answer.is_chat ? "chatcmpl-" : "cmpl-") + id,
                                 answer.is_chat ? "chat.completion" : "text_completion", model);
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(n_prompt, n_answer, n_cached);
  body["edgellm"] = own.size() == 1 ? own[0] : OrderedJson({{"choices", own}});
  if (answer.with_token_ids) {
    body["prompt_token_ids"] =
        answer.prompts.size() == 1 ? OrderedJson(answer.prompts[0]) : OrderedJson(answer.prompts);
  }
  return body;
}

RequestError request_error(ExitCode code, const std::string& message) {
  // A line's own faults are kUsage; messages that a template cannot render are kModelFile.
  if (code == ExitCode::kUsage || code == ExitCode::kModelFile) {
    return {.code = "invalid_request", .message = message};
  }
  const bool is_theirs = code == ExitCode::kPromptDoesNotFit || code == ExitCode::kUnsupported;
  return {.code = exit_code_name(code), .message = message, .is_ours = !is_theirs};
}

OrderedJson error_body(const RequestError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", error.is_ours ? "server_error" : "invalid_request_error"},
            {"param", nullptr},
            {"code", error.code}}}};
}

}  // namespace edgellm
