#include "apps/batch/records.h"

#include "apps/common/terminal.h"
#include "base/json.h"

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

}  // namespace

std::string answer_record(const RecordHead& head, const RequestAnswer& answer,
                          const ModelFile& model, const Tokenizer* tokenizer) {
  OrderedJson record = head_json(head);
  record["response"] = {{"status_code", 200},
                        {"request_id", request_id(head)},
                        {"body", answer_body(hex128(head.digest), answer, model, tokenizer)}};
  record["error"] = nullptr;
  return json_line(record);
}

std::string error_record(const RecordHead& head, const RequestError& error) {
  // OpenAI's reference says that `error` is set, and OpenAI sets the response's body. Some clients
  // read the one, some the other.
  OrderedJson record = head_json(head);
  record["response"] = {{"status_code", error.is_ours ? 500 : 400},
                        {"request_id", request_id(head)},
                        {"body", error_body(error)}};
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
