#include "apps/serve/served_model.h"

#include <algorithm>
#include <utility>

#include "apps/requests/openai_answer.h"
#include "apps/serve/api_error.h"
#include "engine/generate.h"

namespace edgellm::serve {
namespace {

// OpenAI's default of a completion that says nothing.
constexpr int kCompletionTokens = 16;

// Those of OpenAI's API.
SamplingChoice openai_choice() {
  SamplingChoice choice;
  choice.temperature = 1;
  return choice;
}

// Those of Ollama's documents, but its penalty of repetitions in the last 64 tokens: ours would be
// one of all tokens.
SamplingChoice ollama_choice() {
  SamplingChoice choice;
  choice.temperature = 0.8;
  choice.top_k = 40;
  choice.top_p = 0.9;
  return choice;
}

// `choice` with what it leaves open as `otherwise` says.
SamplingOptions options_or(const SamplingChoice& choice, const SamplingChoice& otherwise,
                           const ModelFile& model) {
  SamplingChoice merged = choice;
  if (!merged.model_defaults && !merged.temperature) {
    merged.temperature = otherwise.temperature;
    if (!merged.top_k) merged.top_k = otherwise.top_k;
    if (!merged.top_p) merged.top_p = otherwise.top_p;
  }
  return sampling_options(merged, model.tokenizer(), model.path());
}

}  // namespace

ServedModel::ServedModel(const ModelChoice& choice, const SessionOptions& session,
                         const ModelOptions& options, const Messages& messages)
    : session_(choice, session, messages),
      tokenizer_(session_.tokenizer()),
      name_(model_name(session_.model())),
      prompts_(session_.model(), tokenizer_, options.parse_special),
      draws_seeds_(!options.sampling.seed) {
  chat_defaults_.max_tokens = options.max_tokens;
  chat_defaults_.stop = options.stop;
  chat_defaults_.system = options.system;
  chat_defaults_.sampling = options_or(options.sampling, openai_choice(), file());
  completion_defaults_ = ollama_defaults_ = chat_defaults_;
  if (!options.limits_completions) completion_defaults_.max_tokens = kCompletionTokens;
  ollama_defaults_.sampling = options_or(options.sampling, ollama_choice(), file());
  Backend& backend = start_many_sequences(session_, options.sequences);
  engine_ = std::make_unique<EngineThread>(
      backend, tokenizer_,
      EngineThreadOptions{.scheduler = {.max_batch_tokens = options.sequences.max_batch_tokens},
                          .queue = options.queue});
}

bool ServedModel::is_called(const std::string& name) const {
  return name == name_ || name == name_ + ":latest";
}

AnswerRun::AnswerRun(ServedModel& model, AnswerRequest wanted, bool is_streamed,
                     const Client& client, Clock::time_point until)
    : model_(model), client_(client), until_(until) {
  try {
    if (wanted.sampling.temperature > 0 && !wanted.has_own_seed && model.draws_seeds()) {
      wanted.sampling.seed = fresh_seed();
    }
    std::vector<std::vector<int32_t>> prompts = model.prompts().ids(wanted);
    // What cannot run is refused before an answer begins.
    for (const std::vector<int32_t>& prompt : prompts) {
      GenerateRequest request;
      request.prompt_ids = prompt;
      request.sampling = wanted.sampling;
      request.top_logprobs = wanted.top_logprobs.value_or(0);
      check_request(model.session().backend(), request);
    }
    live_ = std::make_shared<LiveRequest>(std::move(wanted), std::move(prompts), is_streamed);
    n_unfinished_ = live_->n_choices();
    model.engine().submit(live_);
  } catch (const Error& error) {
    throw api_error(error.code(), error.what());
  } catch (const QueueFull& full) {
    ApiError error(
        429, "queue_full",
        "the server answers as many requests as it may, and as many wait; try again in " +
            std::to_string(full.retry_after_seconds) + " s");
    error.retry_after_seconds = full.retry_after_seconds;
    throw error;
  } catch (const EngineFailed& failure) {
    throw ApiError(500, "engine_failed", failure.what());
  }
}

AnswerRun::~AnswerRun() {
  if (n_unfinished_ > 0) model_.engine().cancel(live_);
}

std::vector<Piece> AnswerRun::next() {
  while (n_unfinished_ > 0 && !is_abandoned_) {
    const Client::Wake wake = client_.wait(live_->event_fd(), until_);
    if (wake == Client::Wake::kGone) {
      is_abandoned_ = true;
      return {};
    }
    if (wake == Client::Wake::kTimeout && Clock::now() >= until_) {
      throw ApiError(504, "timeout",
                     "the answer took longer than a request may; ask for fewer tokens, or start "
                     "the server with a longer --timeout");
    }
    std::vector<Piece> pieces = live_->take();
    for (const Piece& piece : pieces) {
      if (!piece.end) continue;
      --n_unfinished_;
      if (piece.end->failure)
        throw api_error(piece.end->failure->code, piece.end->failure->message);
      if (piece.end->finish_reason == FinishReason::kInterrupted) {
        throw ApiError(503, "shutting_down", "the server ends");
      }
    }
    if (!pieces.empty()) return pieces;
  }
  return {};
}

}  // namespace edgellm::serve
