// Ollama's own API: /api/generate, /api/chat and what front ends ask besides.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <utility>

#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/common/version.h"
#include "apps/requests/openai_answer.h"
#include "apps/serve/answer_run.h"
#include "apps/serve/api.h"
#include "base/clock.h"
#include "base/text.h"

namespace edgellm::serve {
namespace {

std::string now_text() { return timestamp(std::chrono::system_clock::now()); }

// An option, and the field of OpenAI's form that means the same.
struct OptionName {
  const char* ollama;
  const char* ours;
};
constexpr std::array<OptionName, 9> kOptions = {{{"temperature", "temperature"},
                                                 {"top_k", "top_k"},
                                                 {"top_p", "top_p"},
                                                 {"min_p", "min_p"},
                                                 {"repeat_penalty", "repeat_penalty"},
                                                 {"frequency_penalty", "frequency_penalty"},
                                                 {"presence_penalty", "presence_penalty"},
                                                 {"stop", "stop"},
                                                 {"num_predict", "max_tokens"}}};

// Options about Ollama's way to run a model, which never change an answer here.
bool is_about_the_machine(const std::string& name) {
  static const std::vector<std::string> names = {
      "num_keep", "num_batch", "num_gpu",    "main_gpu", "num_thread", "use_mmap",     "use_mlock",
      "numa",     "low_vram",  "vocab_only", "f16_kv",   "logits_all", "repeat_last_n"};
  return std::ranges::find(names, name) != names.end();
}

// The options of a request become fields of `body`.
void read_options(const Fields& options, const ServedModel& model, Json& body) {
  for (const auto& [name, value] : options.json().items()) {
    if (value.is_null() || is_about_the_machine(name)) continue;
    const auto known = std::ranges::find_if(
        kOptions, [&name = name](const OptionName& option) { return name == option.ollama; });
    if (known != kOptions.end()) {
      body[known->ours] = value;
    } else if (name == "seed") {
      const int64_t seed = options.integer(name, INT64_MIN, INT64_MAX);
      if (seed >= 0) body["seed"] = static_cast<uint64_t>(seed);
    } else if (name == "num_ctx") {
      const int64_t wanted = options.integer(name, 1, INT32_MAX);
      if (wanted > model.context()) {
        options.fail(options.name(name) + " is " + std::to_string(wanted) +
                     ", but the server was started with a context of " +
                     std::to_string(model.context()) + " (-c)");
      }
    } else {
      options.fail(options.name(printable(name)) + " is not supported; leave it out");
    }
  }
  // -1 and -2: until the model stops, until the context is full.
  if (const auto limit = body.find("max_tokens"); limit != body.end() && *limit == -2) *limit = -1;
}

// Fields that must be there with nothing in them, or not at all.
void require_empty(const Fields& body, const std::vector<const char*>& names) {
  for (const char* name : names) {
    const Json* value = body.find(name);
    if (value == nullptr || value->empty() || *value == "" || *value == false) continue;
    body.fail(body.name(name) + " is not supported; leave it out");
  }
}

// What both paths share: the form that OpenAI's requests have, with the prompt left to fill in.
Json common_body(const Fields& body, const ServedModel& model, bool is_chat) {
  Json converted = Json::object();
  if (body.has("options")) read_options(body.object("options"), model, converted);
  const bool wants_logprobs = body.has("logprobs") && body.boolean("logprobs");
  const int64_t top = body.has("top_logprobs") ? body.integer("top_logprobs", 0, 20) : 0;
  if (wants_logprobs && is_chat) {
    converted["logprobs"] = true;
    converted["top_logprobs"] = top;
  } else if (wants_logprobs) {
    converted["logprobs"] = top;
  }
  converted["stream"] = !body.has("stream") || body.boolean("stream");
  return converted;
}

// Lines of JSON, one for each piece and a last one with the figures.
class OllamaAnswer {
 public:
  // Of the request, by now_ns().
  struct Times {
    int64_t began = 0;
    int64_t load_ns = 0;
  };

  OllamaAnswer(std::shared_ptr<AnswerRun> run, const ServedModel& model, bool is_chat_path,
               const Times& times)
      : run_(std::move(run)), model_(model), is_chat_path_(is_chat_path), times_(times) {}

  void stream(std::vector<Piece> pieces, const StreamWriter& writer) {
    try {
      for (; !pieces.empty(); pieces = run_->next()) {
        std::string lines;
        for (Piece& piece : pieces) lines += lines_of(std::move(piece));
        if (!lines.empty() && !writer(lines)) return run_->abandon();
      }
    } catch (const ApiError& error) {
      writer(error_json(error, ErrorForm::kOllama));
    }
  }

  // All of it in one object.
  OrderedJson whole() {
    std::string text;
    std::vector<IdLogprobs> logprobs;
    for (std::vector<Piece> pieces = run_->next(); !pieces.empty(); pieces = run_->next()) {
      for (Piece& piece : pieces) {
        text += piece.text;
        for (IdLogprobs& one : piece.logprobs) logprobs.push_back(std::move(one));
        if (piece.end) result_ = std::move(piece.end);
      }
    }
    return last(text, logprobs);
  }

 private:
  OrderedJson line(const std::string& text, const std::vector<IdLogprobs>& logprobs) const {
    OrderedJson json = {{"model", model_.name()}, {"created_at", now_text()}};
    if (is_chat_path_) {
      json["message"] = {{"role", "assistant"}, {"content", text}};
    } else {
      json["response"] = text;
    }
    if (!logprobs.empty()) {
      json["logprobs"] = chat_logprobs(logprobs, model_.tokenizer())["content"];
    }
    json["done"] = false;
    return json;
  }

  OrderedJson last(const std::string& text, const std::vector<IdLogprobs>& logprobs) const {
    OrderedJson json = line(text, logprobs);
    json["done"] = true;
    if (!result_) return json;  // the client has gone
    json["done_reason"] = openai_finish_reason(result_->finish_reason);
    json["total_duration"] = now_ns() - times_.began;
    json["load_duration"] = times_.load_ns;
    json["prompt_eval_count"] = run_->request().prompts().front().size();
    json["prompt_eval_duration"] = result_->prefill_ns;
    json["eval_count"] = result_->token_ids.size();
    json["eval_duration"] = result_->total_ns - result_->ttft_ns;
    return json;
  }

  std::string lines_of(Piece&& piece) {
    std::string lines;
    if (!piece.text.empty() || !piece.logprobs.empty()) {
      lines = json_line(line(piece.text, piece.logprobs));
    }
    if (piece.end) {
      result_ = std::move(piece.end);
      lines += json_line(last("", {}));
    }
    return lines;
  }

  const std::shared_ptr<AnswerRun> run_;
  const ServedModel& model_;
  const bool is_chat_path_;
  const Times times_;
  std::optional<SequenceResult> result_;
};

// What an answer is asked with.
struct OllamaForm {
  bool is_chat = false;       // through the chat template
  bool is_chat_path = false;  // /api/chat
  KeepAlive keep_alive;
};

HttpResponse ollama_answer(ServedModel& model, Models& models, const Json& converted,
                           const OllamaForm& form, const Client& client, Clock::time_point until) {
  OllamaAnswer::Times times = {.began = now_ns()};
  AnswerRequest wanted = read_request_body(
      fields_of(converted), {.is_chat = form.is_chat, .is_served = true}, model.ollama_defaults());
  const bool is_streamed = wanted.stream;
  std::shared_ptr<LoadedModel> loaded = models.use(model, client, until, form.keep_alive);
  times.load_ns = now_ns() - times.began;
  const auto run = std::make_shared<AnswerRun>(model, std::move(loaded), std::move(wanted),
                                               is_streamed, client, until);
  const auto answer = std::make_shared<OllamaAnswer>(run, model, form.is_chat_path, times);
  if (!is_streamed) return json_response(answer->whole());
  HttpResponse response = {.content_type = "application/x-ndjson"};
  response.stream = [answer, first = run->next()](const StreamWriter& writer) {
    answer->stream(first, writer);
  };
  return response;
}

// Ollama's clients send a request without a prompt to load a model, and one with a keep_alive of 0
// to unload it.
HttpResponse loaded(ServedModel& model, Models& models, const OllamaForm& form,
                    const Client& client, Clock::time_point until) {
  const bool unloads = form.keep_alive && form.keep_alive->count() == 0;
  if (unloads) {
    models.expire(model);
  } else {
    models.use(model, client, until, form.keep_alive);
  }
  OrderedJson json = {{"model", model.name()}, {"created_at", now_text()}};
  if (form.is_chat_path) {
    json["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    json["response"] = "";
  }
  json["done"] = true;
  json["done_reason"] = unloads ? "unload" : "load";
  return json_response(json);
}

OrderedJson details_json(const ServedModel& model) {
  const std::string family = model.file().config().architecture;
  return {{"parent_model", ""},
          {"format", "tmac2"},
          {"family", family},
          {"families", OrderedJson::array({family})},
          {"parameter_size", human_count(model.file().parameter_count())},
          {"quantization_level", "ternary"}};
}

OrderedJson listed_json(const ServedModel& model) {
  return {{"name", model.name() + ":latest"},
          {"model", model.name() + ":latest"},
          {"size", model.file().file_bytes()},
          {"digest", hex64(model.file().id())},
          {"details", details_json(model)}};
}

}  // namespace

HttpResponse Api::ollama_generate(const HttpRequest& request) {
  const Json json = parse_body(request);
  const Fields body = fields_of(json);
  ServedModel& model = model_of(body);
  require_known_names(
      body, {"model", "prompt", "suffix", "images", "format", "options", "system", "template",
             "stream", "raw", "keep_alive", "context", "think", "logprobs", "top_logprobs"});
  require_empty(body, {"suffix", "images", "format", "template", "context", "think"});
  const KeepAlive keep_alive = read_keep_alive(body, models_.keep_alive());
  const std::string prompt = body.has("prompt") ? body.text("prompt") : "";
  if (prompt.empty())
    return loaded(model, models_, {.keep_alive = keep_alive}, *request.client, deadline());
  const bool is_raw = body.has("raw") && body.boolean("raw");
  const bool is_chat = !is_raw && model.has_chat_template();
  const std::string system = body.has("system") ? body.text("system") : "";
  if (!system.empty() && !is_chat) {
    body.fail("system needs a model with a chat template, and a request that is not raw");
  }
  Json converted = common_body(body, model, is_chat);
  if (is_chat) {
    converted["messages"] = Json::array();
    if (!system.empty()) converted["messages"].push_back({{"role", "system"}, {"content", system}});
    converted["messages"].push_back({{"role", "user"}, {"content", prompt}});
  } else {
    converted["prompt"] = prompt;
  }
  return ollama_answer(model, models_, converted, {.is_chat = is_chat, .keep_alive = keep_alive},
                       *request.client, deadline());
}

HttpResponse Api::ollama_chat(const HttpRequest& request) {
  const Json json = parse_body(request);
  const Fields body = fields_of(json);
  ServedModel& model = model_of(body);
  require_known_names(body, {"model", "messages", "tools", "format", "options", "stream",
                             "keep_alive", "think", "logprobs", "top_logprobs"});
  require_empty(body, {"tools", "format", "think"});
  const OllamaForm form = {.is_chat = true,
                           .is_chat_path = true,
                           .keep_alive = read_keep_alive(body, models_.keep_alive())};
  if (!body.has("messages") || body.array("messages").empty()) {
    return loaded(model, models_, form, *request.client, deadline());
  }
  Json converted = common_body(body, model, /*is_chat=*/true);
  converted["messages"] = Json::array();
  for (size_t i = 0; i < body.array("messages").size(); ++i) {
    const Fields message = body.entry("messages", i);
    require_known_names(message, {"role", "content", "images", "tool_calls", "thinking"});
    require_empty(message, {"images", "tool_calls", "thinking"});
    converted["messages"].push_back(
        {{"role", message.text("role")}, {"content", message.text("content")}});
  }
  return ollama_answer(model, models_, converted, form, *request.client, deadline());
}

HttpResponse Api::ollama_tags(const HttpRequest&) {
  OrderedJson models = OrderedJson::array();
  for (const ServedModel* model : models_.all()) {
    OrderedJson listed = listed_json(*model);
    listed["modified_at"] =
        timestamp(std::chrono::system_clock::time_point(std::chrono::seconds(started_at_)));
    models.push_back(std::move(listed));
  }
  return json_response({{"models", std::move(models)}});
}

HttpResponse Api::ollama_ps(const HttpRequest&) {
  OrderedJson models = OrderedJson::array();
  for (const Models::Status& status : models_.status()) {
    if (!status.is_loaded) continue;
    OrderedJson listed = listed_json(*status.model);
    const uint64_t bytes = status.state.memory.total();
    listed["size"] = bytes;
    listed["size_vram"] = status.is_gpu ? bytes : 0;
    listed["context_length"] = status.model->context();
    // As Ollama writes of a model that stays.
    listed["expires_at"] =
        status.expires_at
            ? timestamp(std::chrono::system_clock::now() + (*status.expires_at - Clock::now()))
            : "2318-01-01T00:00:00Z";
    models.push_back(std::move(listed));
  }
  return json_response({{"models", std::move(models)}});
}

HttpResponse Api::ollama_show(const HttpRequest& request) {
  const Json json = parse_body(request);
  const Fields body = fields_of(json);
  require_known_names(body, {"model", "name", "verbose", "system", "template", "options"});
  const ServedModel& model =
      body.has("model") || !body.has("name") ? model_of(body) : model_called(body.text("name"));
  const ModelConfig& config = model.file().config();
  const std::string architecture = config.architecture;
  OrderedJson capabilities = OrderedJson::array({"completion", "embedding"});
  return json_response({{"license", model.file().provenance().licence},
                        {"modelfile", ""},
                        {"parameters", ""},
                        {"template", model.file().tokenizer().chat_template},
                        {"details", details_json(model)},
                        {"model_info",
                         {{"general.architecture", architecture},
                          {"general.parameter_count", model.file().parameter_count()},
                          {architecture + ".context_length", config.max_context},
                          {architecture + ".embedding_length", config.dim},
                          {architecture + ".block_count", config.layers}}},
                        {"capabilities", capabilities},
                        {"modified_at", timestamp(std::chrono::system_clock::time_point(
                                            std::chrono::seconds(started_at_)))}});
}

HttpResponse Api::ollama_version(const HttpRequest&) {
  return json_response({{"version", build_info().version}});
}

}  // namespace edgellm::serve
