// The page, and what operators and tools ask: /health, /metrics, /props, /server_info, /model_info,
// /tokenize, /detokenize, /tokenizer_info.
#include <utility>

#include "apps/common/version.h"
#include "apps/requests/openai_answer.h"
#include "apps/serve/api.h"
#include "apps/serve/page/page.h"
#include "apps/session/prompt.h"
#include "base/text.h"

namespace edgellm::serve {
namespace {

const Tokenizer& tokenizer_of(const ServedModel& model) {
  if (model.tokenizer() != nullptr) return *model.tokenizer();
  throw ApiError(400, "invalid_request", "the model has no tokenizer");
}

std::string token_text(const ServedModel& model, int32_t id) {
  return std::string(tokenizer_of(model).token_bytes(id));
}

}  // namespace

HttpResponse Api::page(const HttpRequest&) {
  HttpResponse response = {.content_type = "text/html; charset=utf-8", .body = std::string(kPage)};
  response.headers = {{"Content-Security-Policy",
                       "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
                       "script-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}};
  return response;
}

HttpResponse Api::health(const HttpRequest&) {
  if (const std::string failure = models_.failure(); !failure.empty()) {
    return json_response({{"status", "failed"}, {"message", failure}}, 503);
  }
  if (is_draining_) return json_response({{"status", "shutting down"}}, 503);
  if (models_.has_failed_device()) {
    return json_response(
        {{"status", "ok"}, {"message", "a device has failed, and the others answer"}});
  }
  return json_response({{"status", "ok"}});
}

HttpResponse Api::metrics(const HttpRequest&) {
  ServerMetrics metrics;
  metrics.connections = connections_();
  if (joules_at_start_) {
    if (const std::optional<double> now = options_.gpu_joules()) {
      metrics.gpu_joules = *now - *joules_at_start_;
    }
  }
  for (const Models::Status& status : models_.status()) {
    metrics.models.push_back({status.model->name(), status.state});
  }
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = metrics_text(metrics)};
}

// `?model=NAME`, or the first.
const ServedModel& Api::model_asked_for(const HttpRequest& request) const {
  const std::string name = request.parameter("model");
  return name.empty() ? models_.first() : model_called(name);
}

HttpResponse Api::props(const HttpRequest& request) {
  const ServedModel& model = model_asked_for(request);
  const Models::Status status = models_.status(model);
  const BuildInfo build = build_info();
  return json_response(
      {{"model", model.name()},
       {"model_id", hex64(model.file().id())},
       {"build_info", "edgellm " + build.version + " (" + build.revision + ")"},
       {"is_loaded", status.is_loaded},
       {"device", status.device},
       {"total_slots", status.sequences},
       {"kv_blocks", status.state.kv_blocks},
       {"kv_type", models_.kv_type()},
       {"chat_template", model.file().tokenizer().chat_template},
       {"default_generation_settings",
        {{"n_ctx", model.context()}, {"params", to_json(model.chat_defaults().sampling)}}}});
}

// What SGLang's router asks of a worker, in its words. There is no model_path: the router would
// load a tokenizer from there.
HttpResponse Api::server_info(const HttpRequest&) {
  const ServedModel& model = models_.first();
  return json_response({{"served_model_name", model.name()},
                        {"version", build_info().version},
                        {"max_running_requests", models_.status(model).sequences}});
}

HttpResponse Api::model_info(const HttpRequest&) {
  const ServedModel& model = models_.first();
  return json_response({{"architectures", Json::array({model.file().config().architecture})},
                        {"is_generation", true},
                        {"max_model_len", model.context()}});
}

// The fields of llama-server's path and of vLLM's: `content` or `prompt`, or the `messages` of a
// chat.
HttpResponse Api::tokenize(const HttpRequest& request) {
  const Json json = parse_body(request);
  const Fields body = fields_of(json);
  require_known_names(body, {"model", "content", "prompt", "messages", "add_special",
                             "add_special_tokens", "with_pieces", "return_token_strs"});
  ServedModel& model = model_of(body);
  const Tokenizer& tokenizer = tokenizer_of(model);
  const bool is_llama = body.has("content");
  std::vector<int32_t> ids;
  if (body.has("messages")) {
    const Json messages = {{"messages", body.get("messages")}};
    const AnswerRequest chat = read_request_body(
        fields_of(messages), {.is_chat = true, .is_served = true}, model.chat_defaults());
    ids = model.prompts().ids(chat).front();
  } else {
    const std::string text = body.text(is_llama ? "content" : "prompt");
    // As each of the two has it: llama-server adds nothing unless asked to.
    const char* name = is_llama ? "add_special" : "add_special_tokens";
    const bool adds_special = body.has(name) ? body.boolean(name) : !is_llama;
    ids = adds_special ? encode_prompt(tokenizer, model.file().tokenizer(), text)
                       : tokenizer.encode(text, /*add_special=*/false);
  }
  OrderedJson answer = {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", model.context()}};
  const auto is_on = [&](const char* key) { return body.has(key) && body.boolean(key); };
  if (is_on("with_pieces")) {
    answer["tokens"] = OrderedJson::array();
    for (const int32_t id : ids) {
      answer["tokens"].push_back({{"id", id}, {"piece", token_text(model, id)}});
    }
  }
  if (is_on("return_token_strs")) {
    answer["token_strs"] = OrderedJson::array();
    for (const int32_t id : ids) answer["token_strs"].push_back(token_text(model, id));
  }
  return json_response(answer);
}

HttpResponse Api::detokenize(const HttpRequest& request) {
  const Json json = parse_body(request);
  const Fields body = fields_of(json);
  require_known_names(body, {"model", "tokens"});
  const ServedModel& model = model_of(body);
  std::vector<int32_t> ids;
  for (const Json& item : body.array("tokens")) {
    int64_t id = 0;
    if (!integer_in(item, 0, model.file().config().vocab - 1, id)) {
      body.fail("tokens holds " + value_text(item) + ", which is no token id of the model");
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  const std::string text = tokenizer_of(model).decode(ids, /*skip_special=*/false);
  return json_response({{"content", text}, {"prompt", text}});
}

// What lm-eval's remote tokenizer asks.
HttpResponse Api::tokenizer_info(const HttpRequest& request) {
  const ServedModel& model = model_asked_for(request);
  const TokenizerInfo& info = model.file().tokenizer();
  OrderedJson answer = {{"tokenizer_class", "edgellm"},
                        {"model_max_length", model.context()},
                        {"chat_template", info.chat_template},
                        {"add_bos_token", info.add_bos}};
  for (const auto& [name, text] :
       info.special_tokens.value_or(std::map<std::string, std::string>{})) {
    answer[name] = text;
  }
  // lm-eval takes a server without one for one without a tokenizer.
  if (!answer.contains("eos_token") && !info.stop_ids.empty() && model.tokenizer() != nullptr) {
    answer["eos_token"] = token_text(model, info.stop_ids.front());
  }
  return json_response(answer);
}

}  // namespace edgellm::serve
