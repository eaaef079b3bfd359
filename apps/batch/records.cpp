#include "apps/batch/records.h"

#include <chrono>

#include "apps/common/exit_codes.h"
#include "apps/common/terminal.h"
#include "apps/common/version.h"
#include "base/json.h"
#include "base/text.h"

namespace edgellm {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kRecordPrefix = "batch_req_";

OrderedJson head_json(const RecordHead& head) {
  return {{"id", std::string(kRecordPrefix) + hex128(head.digest)},
          {"custom_id", head.custom_id},
          {"line", head.line}};
}

std::string request_id(const RecordHead& head) { return "req_" + hex128(head.digest); }

// OpenAI's words for why an answer ended. Ours say more and are in the record as well.
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

OrderedJson chat_logprobs(const BatchChoice& choice, const Tokenizer* tokenizer) {
  OrderedJson content = OrderedJson::array();
  for (const auto& [id, logprobs] : choice.logprobs) {
    OrderedJson token = token_json(id, logprobs.logprob, tokenizer);
    token["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& top : logprobs.top) {
      token["top_logprobs"].push_back(token_json(top.id, top.logprob, tokenizer));
    }
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// OpenAI's older form: lists side by side. `text_offset` counts characters.
OrderedJson completion_logprobs(const BatchChoice& choice, const Tokenizer* tokenizer) {
  OrderedJson tokens = OrderedJson::array();
  OrderedJson of_tokens = OrderedJson::array();
  OrderedJson tops = OrderedJson::array();
  OrderedJson offsets = OrderedJson::array();
  int64_t offset = 0;
  const auto name = [&](int32_t id) {
    return tokenizer == nullptr ? "token_id:" + std::to_string(id)
                                : std::string(tokenizer->token_bytes(id));
  };
  for (const auto& [id, logprobs] : choice.logprobs) {
    const std::string text = name(id);
    tokens.push_back(text);
    of_tokens.push_back(logprobs.logprob);
    OrderedJson top = OrderedJson::object();
    for (const TokenLogprob& one : logprobs.top) top[name(one.id)] = one.logprob;
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += static_cast<int64_t>(count_characters(text));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(of_tokens)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

OrderedJson choice_json(const BatchAnswer& answer, size_t index, const Tokenizer* tokenizer) {
  const BatchChoice& given = answer.choices[index];
  const OrderedJson text = given.text ? OrderedJson(*given.text) : OrderedJson(nullptr);
  OrderedJson choice = {{"index", index}};
  if (answer.is_chat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  if (answer.with_logprobs) {
    choice["logprobs"] =
        answer.is_chat ? chat_logprobs(given, tokenizer) : completion_logprobs(given, tokenizer);
  }
  choice["finish_reason"] = openai_finish_reason(given.result.finish_reason);
  if (answer.with_token_ids) choice["token_ids"] = given.result.token_ids;
  return choice;
}

// What OpenAI's form has no place for.
OrderedJson own_json(const BatchChoice& choice) {
  const SequenceResult& result = choice.result;
  OrderedJson own = {{"finish_reason", to_string(result.finish_reason)}};
  if (choice.seed) own["seed"] = *choice.seed;
  own["timings"] = {{"queued_ns", result.queued_ns},
                    {"prompt_eval_ns", result.prefill_ns},
                    {"ttft_ns", result.ttft_ns},
                    {"total_ns", result.total_ns}};
  return own;
}

// The name under which `edgellm run NAME` knows the model.
std::string model_name(const ModelFile& model) {
  const std::string path = model.path().substr(model.path().rfind('/') + 1);
  const size_t dot = path.rfind(".tmac2");
  return dot == std::string::npos ? path : path.substr(0, dot);
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

BatchError batch_error(ExitCode code, const std::string& message) {
  // A line's own faults are kUsage; messages that a template cannot render are kModelFile.
  if (code == ExitCode::kUsage || code == ExitCode::kModelFile) {
    return {.code = "invalid_request", .message = message};
  }
  const bool is_theirs = code == ExitCode::kPromptDoesNotFit || code == ExitCode::kUnsupported;
  return {.code = exit_code_name(code), .message = message, .is_ours = !is_theirs};
}

std::string answer_record(const RecordHead& head, const BatchAnswer& answer, const ModelFile& model,
                          const Tokenizer* tokenizer) {
  OrderedJson choices = OrderedJson::array();
  OrderedJson own = OrderedJson::array();
  size_t n_answer = 0;
  for (size_t i = 0; i < answer.choices.size(); ++i) {
    choices.push_back(choice_json(answer, i, tokenizer));
    own.push_back(own_json(answer.choices[i]));
    n_answer += answer.choices[i].result.token_ids.size();
  }
  const size_t n_prompt = answer.prompt_ids.size();
  const int n_cached = answer.choices.front().result.n_shared_prompt_ids;
  OrderedJson body = {
      {"id", (answer.is_chat ? "chatcmpl-" : "cmpl-") + hex128(head.digest)},
      {"object", answer.is_chat ? "chat.completion" : "text_completion"},
      {"created", unix_seconds()},
      {"model", model_name(model)},
      {"system_fingerprint", "edgellm-" + build_info().version + "-" + hex64(model.id())},
      {"choices", std::move(choices)},
      {"usage",
       {{"prompt_tokens", n_prompt},
        {"completion_tokens", n_answer},
        {"total_tokens", n_prompt + n_answer},
        {"prompt_tokens_details", {{"cached_tokens", n_cached}}}}}};
  body["edgellm"] = own.size() == 1 ? own[0] : OrderedJson({{"choices", own}});
  if (answer.with_token_ids) body["prompt_token_ids"] = answer.prompt_ids;
  OrderedJson record = head_json(head);
  record["response"] = {
      {"status_code", 200}, {"request_id", request_id(head)}, {"body", std::move(body)}};
  record["error"] = nullptr;
  return json_line(record);
}

std::string error_record(const RecordHead& head, const BatchError& error) {
  // OpenAI's reference says that `error` is set, and OpenAI sets the response's body. Some clients
  // read the one, some the other.
  OrderedJson record = head_json(head);
  record["response"] = {{"status_code", error.is_ours ? 500 : 400},
                        {"request_id", request_id(head)},
                        {"body",
                         {{"error",
                           {{"message", error.message},
                            {"type", error.is_ours ? "server_error" : "invalid_request_error"},
                            {"param", nullptr},
                            {"code", error.code}}}}}};
  record["error"] = {{"code", error.code}, {"message", error.message}, {"line", head.line}};
  return json_line(record);
}

std::optional<RecordInfo> read_record(std::string_view text) {
  // The answer is dropped unread: keeping it would be most of the work.
  const auto keep = [](int depth, const std::string& key) {
    return depth != 1 || key != "response";
  };
  const std::optional<Json> json = try_parse_json(text, keep);
  if (!json || !json->is_object()) return std::nullopt;
  const auto id = json->find("id");
  const auto custom_id = json->find("custom_id");
  const auto line = json->find("line");
  const auto error = json->find("error");
  for (const auto& field : {id, custom_id, line, error}) {
    if (field == json->end()) return std::nullopt;
  }
  RecordInfo info;
  if (!id->is_string() || !custom_id->is_string()) return std::nullopt;
  const std::string name = id->get<std::string>();
  if (!name.starts_with(kRecordPrefix)) return std::nullopt;
  const auto digest = parse_hex128(std::string_view(name).substr(kRecordPrefix.size()));
  if (!digest || !integer_in(*line, 1, INT64_MAX, info.head.line)) return std::nullopt;
  info.head.digest = *digest;
  info.head.custom_id = custom_id->get<std::string>();
  info.succeeded = error->is_null();
  return info;
}

std::string moved_record(std::string_view text, int64_t line) {
  OrderedJson record = OrderedJson::parse(text);
  record["line"] = line;
  return json_line(record);
}

}  // namespace edgellm
