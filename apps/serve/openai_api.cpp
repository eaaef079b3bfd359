// /v1/completions, /v1/chat/completions, /v1/models.
#include <algorithm>
#include <memory>
#include <utility>

#include "apps/common/terminal.h"
#include "apps/requests/openai_answer.h"
#include "apps/serve/answer_run.h"
#include "apps/serve/api.h"

namespace edgellm::serve {
namespace {

// The text of a prompt, for `echo`.
std::string prompt_text(const AnswerRequest& wanted, size_t prompt, const ServedModel& model,
                        const std::vector<int32_t>& ids) {
  const RequestPrompt& given = wanted.prompts[prompt];
  if (given.ids.empty()) return given.text;
  if (model.tokenizer() == nullptr) return "";
  return model.tokenizer()->decode(ids, /*skip_special=*/false);
}

// Collects what pieces bring of one answer.
class ChoiceBuilder {
 public:
  ChoiceBuilder(const LiveRequest& request, size_t choice, const ServedModel& model)
      : request_(request), choice_(choice), model_(model) {}

  // `echo`: what stands before the first piece.
  std::string text_before() const {
    const AnswerRequest& wanted = request_.wanted();
    if (!wanted.echo) return "";
    return prompt_text(wanted, choice_ / static_cast<size_t>(wanted.n), model_,
                       request_.prompt_of(choice_));
  }
  std::vector<IdLogprobs> logprobs_before() const {
    if (!request_.wanted().echo) return {};
    return {{.id = request_.prompt_of(choice_).front(), .logprobs = std::nullopt}};
  }
  std::optional<uint64_t> seed() const {
    const AnswerRequest& wanted = request_.wanted();
    if (wanted.sampling.temperature == 0) return std::nullopt;
    return wanted.sampling.seed + choice_ % static_cast<size_t>(wanted.n);
  }

 private:
  const LiveRequest& request_;
  const size_t choice_;
  const ServedModel& model_;
};

// The prompt's log-probabilities, then those of the answer's tokens.
std::vector<IdLogprobs> all_logprobs(Piece&& piece) {
  std::vector<IdLogprobs> all = std::move(piece.prompt_logprobs);
  all.insert(all.end(), std::make_move_iterator(piece.logprobs.begin()),
             std::make_move_iterator(piece.logprobs.end()));
  return all;
}

RequestAnswer collect(AnswerRun& run, const ServedModel& model) {
  const AnswerRequest& wanted = run.request().wanted();
  RequestAnswer answer;
  answer.is_chat = wanted.is_chat;
  answer.prompts = run.request().prompts();
  answer.with_token_ids = wanted.return_token_ids || model.tokenizer() == nullptr;
  answer.with_logprobs = wanted.top_logprobs.has_value();
  for (size_t i = 0; i < run.request().n_choices(); ++i) {
    const ChoiceBuilder builder(run.request(), i, model);
    AnswerChoice& choice = answer.choices.emplace_back();
    if (model.tokenizer() != nullptr) choice.text = builder.text_before();
    if (answer.with_logprobs) choice.logprobs = builder.logprobs_before();
    choice.seed = builder.seed();
  }
  for (std::vector<Piece> pieces = run.next(); !pieces.empty(); pieces = run.next()) {
    for (Piece& piece : pieces) {
      AnswerChoice& choice = answer.choices[piece.choice];
      if (choice.text) *choice.text += piece.text;
      if (piece.end) choice.result = std::move(*piece.end);
      for (IdLogprobs& one : all_logprobs(std::move(piece))) {
        choice.logprobs.push_back(std::move(one));
      }
    }
  }
  return answer;
}

// The events of a streamed answer.
class EventStream {
 public:
  EventStream(std::shared_ptr<AnswerRun> run, std::string id, const ServedModel& model)
      : run_(std::move(run)),
        model_(model),
        wanted_(run_->request().wanted()),
        head_(answer_head((wanted_.is_chat ? "chatcmpl-" : "cmpl-") + id,
                          wanted_.is_chat ? "chat.completion.chunk" : "text_completion",
                          model.file())),
        choices_(run_->request().n_choices()) {
    for (const std::vector<int32_t>& prompt : run_->request().prompts()) n_prompt_ += prompt.size();
  }

  void write(std::vector<Piece> pieces, const StreamWriter& writer) {
    try {
      for (; !pieces.empty(); pieces = run_->next()) {
        std::string events;
        for (Piece& piece : pieces) events += events_of(std::move(piece));
        if (!events.empty() && !writer(events)) return run_->abandon();
      }
    } catch (const ApiError& error) {
      writer("data: " + error_json(error, ErrorForm::kOpenAi) + "\n");
      return;
    }
    if (run_->is_abandoned()) return;
    std::string last;
    if (wanted_.stream_usage) {
      OrderedJson json = head_;
      json["choices"] = OrderedJson::array();
      json["usage"] = usage();
      last = event(json);
    }
    writer(last + "data: [DONE]\n\n");
  }

 private:
  struct Choice {
    bool has_begun = false;
    int64_t text_offset = 0;
  };

  static std::string event(const OrderedJson& json) { return "data: " + json_line(json) + "\n"; }

  OrderedJson usage() const { return usage_json(n_prompt_, n_answer_, n_cached_); }

  OrderedJson chunk(size_t choice, const std::string& text) const {
    OrderedJson one = {{"index", choice}};
    if (wanted_.is_chat) {
      one["delta"] = OrderedJson::object();
      if (!choices_[choice].has_begun) one["delta"]["role"] = "assistant";
      if (!text.empty() || !choices_[choice].has_begun) one["delta"]["content"] = text;
    } else {
      one["text"] = text;
    }
    one["logprobs"] = nullptr;
    one["finish_reason"] = nullptr;
    return one;
  }

  std::string with_head(OrderedJson&& choice) const {
    OrderedJson json = head_;
    json["choices"] = OrderedJson::array({std::move(choice)});
    if (wanted_.stream_continuous_usage) {
      json["usage"] = usage();
    } else if (wanted_.stream_usage) {
      json["usage"] = nullptr;
    }
    return event(json);
  }

  std::string events_of(Piece&& piece) {
    Choice& choice = choices_[piece.choice];
    const ChoiceBuilder builder(run_->request(), piece.choice, model_);
    const std::optional<SequenceResult> end = std::move(piece.end);
    const size_t index = piece.choice;
    std::string text = std::move(piece.text);
    const std::vector<int32_t> ids = piece.ids;
    std::vector<IdLogprobs> logprobs = all_logprobs(std::move(piece));
    n_answer_ += ids.size();
    if (end && end->n_shared_prompt_ids > 0 && index % static_cast<size_t>(wanted_.n) == 0) {
      n_cached_ += end->n_shared_prompt_ids;
    }
    if (!choice.has_begun && wanted_.echo) {
      text.insert(0, builder.text_before());
      if (wanted_.top_logprobs) {
        const std::vector<IdLogprobs> before = builder.logprobs_before();
        logprobs.insert(logprobs.begin(), before.begin(), before.end());
      }
    }
    std::string events;
    const bool shows_ids = wanted_.return_token_ids || model_.tokenizer() == nullptr;
    const bool has_news = !text.empty() || !logprobs.empty() || (shows_ids && !ids.empty());
    if (has_news || (wanted_.is_chat && !choice.has_begun)) {
      OrderedJson one = chunk(index, text);
      if (wanted_.top_logprobs && !logprobs.empty()) {
        one["logprobs"] =
            wanted_.is_chat ? chat_logprobs(logprobs, model_.tokenizer())
                            : completion_logprobs(logprobs, model_.tokenizer(), choice.text_offset);
      }
      if (shows_ids) one["token_ids"] = ids;
      choice.has_begun = true;
      events += with_head(std::move(one));
    }
    if (end) {
      OrderedJson one = chunk(index, "");
      one["finish_reason"] = openai_finish_reason(end->finish_reason);
      one["edgellm"] =
          own_fields({.text = {}, .result = *end, .seed = builder.seed(), .logprobs = {}});
      events += with_head(std::move(one));
    }
    return events;
  }

  const std::shared_ptr<AnswerRun> run_;
  const ServedModel& model_;
  const AnswerRequest& wanted_;
  const OrderedJson head_;
  std::vector<Choice> choices_;
  size_t n_prompt_ = 0;
  size_t n_answer_ = 0;
  int n_cached_ = 0;
};

OrderedJson model_json(const ServedModel& model, int64_t created) {
  return {{"id", model.name()},
          {"object", "model"},
          {"created", created},
          {"owned_by", "edgellm"},
          {"max_model_len", model.context()},
          {"meta",
           {{"n_params", model.file().parameter_count()},
            {"size", model.file().file_bytes()},
            {"n_vocab", model.file().config().vocab},
            {"n_ctx_train", model.file().config().max_context}}}};
}

}  // namespace

HttpResponse Api::completions(const HttpRequest& request) { return openai_answer(request, false); }
HttpResponse Api::chat_completions(const HttpRequest& request) {
  return openai_answer(request, true);
}

HttpResponse Api::openai_answer(const HttpRequest& request, bool is_chat) {
  const Json json = parse_body(request);
  const Fields body = fields_of(json);
  ServedModel& model = model_of(body);
  AnswerRequest wanted =
      read_request_body(body, {.is_chat = is_chat, .is_served = true},
                        is_chat ? model.chat_defaults() : model.completion_defaults());
  const bool is_streamed = wanted.stream;
  const Clock::time_point until = deadline();
  const auto run =
      std::make_shared<AnswerRun>(model, models_.use(model, *request.client, until),
                                  std::move(wanted), is_streamed, *request.client, until);
  const std::string id = fresh_id();
  if (!is_streamed) {
    const RequestAnswer answer = collect(*run, model);
    return json_response(answer_body(id, answer, model.file(), model.tokenizer()));
  }
  // An answer that fails at once has a status of its own.
  std::vector<Piece> first = run->next();
  HttpResponse response = {.content_type = "text/event-stream"};
  response.headers.emplace_back("Cache-Control", "no-cache");
  const auto events = std::make_shared<EventStream>(run, id, model);
  response.stream = [events, first = std::move(first)](const StreamWriter& writer) {
    events->write(first, writer);
  };
  return response;
}

HttpResponse Api::models(const HttpRequest&) {
  OrderedJson data = OrderedJson::array();
  for (const ServedModel* model : models_.all()) data.push_back(model_json(*model, started_at_));
  return json_response({{"object", "list"}, {"data", std::move(data)}});
}

HttpResponse Api::one_model(const HttpRequest& request) {
  return json_response(model_json(
      model_called(request.path.substr(std::string("/v1/models/").size())), started_at_));
}

}  // namespace edgellm::serve
