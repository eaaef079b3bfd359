#include "apps/serve/answer_run.h"

#include <string>
#include <utility>

#include "apps/serve/api_error.h"
#include "engine/generate.h"

namespace edgellm::serve {
namespace {

// What cannot run is refused before an answer begins. Throws Error.
void check_prompts(const Backend& backend, const std::vector<std::vector<int32_t>>& prompts,
                   const AnswerRequest& wanted) {
  for (const std::vector<int32_t>& prompt : prompts) {
    GenerateRequest request;
    request.prompt_ids = prompt;
    request.sampling = wanted.sampling;
    request.top_logprobs = wanted.top_logprobs.value_or(0);
    check_request(backend, request);
  }
}

}  // namespace

AnswerRun::AnswerRun(ServedModel& model, std::shared_ptr<LoadedModel> loaded, AnswerRequest wanted,
                     bool is_streamed, const Client& client, Clock::time_point until)
    : loaded_(std::move(loaded)), client_(client), until_(until) {
  if (wanted.sampling.temperature > 0 && !wanted.has_own_seed && model.draws_seeds()) {
    wanted.sampling.seed = fresh_seed();
  }
  std::vector<std::vector<int32_t>> prompts = model.prompts().ids(wanted);
  check_prompts(loaded_->backend(), prompts, wanted);
  submit(std::make_shared<LiveRequest>(std::move(wanted), std::move(prompts), is_streamed));
}

AnswerRun::AnswerRun(std::shared_ptr<LoadedModel> loaded, std::vector<std::vector<int32_t>> prompts,
                     Pooling pooling, const Client& client, Clock::time_point until)
    : loaded_(std::move(loaded)), client_(client), until_(until) {
  check_prompts(loaded_->backend(), prompts, {});
  submit(std::make_shared<LiveRequest>(std::move(prompts), pooling));
}

void AnswerRun::submit(std::shared_ptr<LiveRequest> live) {
  try {
    loaded_->engine().submit(live);
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
  live_ = std::move(live);
  n_unfinished_ = live_->n_choices();
}

AnswerRun::~AnswerRun() {
  if (n_unfinished_ > 0) loaded_->engine().cancel(live_);
}

std::vector<Piece> AnswerRun::next() {
  while (n_unfinished_ > 0 && !is_abandoned_) {
    const Client::Wake wake = client_.wait(live_->event()->fd(), until_);
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
