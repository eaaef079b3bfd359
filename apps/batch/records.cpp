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

OrderedJson choice_json(const BatchAnswer& answer) {
  const OrderedJson text = answer.text ? OrderedJson(*answer.text) : OrderedJson(nullptr);
  OrderedJson choice = {{"index", 0}};
  if (answer.is_chat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = openai_finish_reason(answer.result.finish_reason);
  if (answer.with_token_ids) choice["token_ids"] = answer.result.token_ids;
  return choice;
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

std::string answer_record(const RecordHead& head, const BatchAnswer& answer,
                          const ModelFile& model) {
  const SequenceResult& result = answer.result;
  const size_t n_prompt = answer.prompt_ids.size();
  const size_t n_answer = result.token_ids.size();
  OrderedJson body = {
      {"id", (answer.is_chat ? "chatcmpl-" : "cmpl-") + hex128(head.digest)},
      {"object", answer.is_chat ? "chat.completion" : "text_completion"},
      {"created", unix_seconds()},
      {"model", model_name(model)},
      {"system_fingerprint", "edgellm-" + build_info().version + "-" + hex64(model.id())},
      {"choices", OrderedJson::array({choice_json(answer)})},
      {"usage",
       {{"prompt_tokens", n_prompt},
        {"completion_tokens", n_answer},
        {"total_tokens", n_prompt + n_answer},
        {"prompt_tokens_details", {{"cached_tokens", result.n_shared_prompt_ids}}}}}};
  OrderedJson& own = body["edgellm"];
  own["finish_reason"] = to_string(result.finish_reason);
  if (answer.seed) own["seed"] = *answer.seed;
  own["timings"] = {{"queued_ns", result.queued_ns},
                    {"prompt_eval_ns", result.prefill_ns},
                    {"ttft_ns", result.ttft_ns},
                    {"total_ns", result.total_ns}};
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
