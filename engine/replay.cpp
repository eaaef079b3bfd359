#include "engine/replay.h"

#include <exception>
#include <utility>

#include "base/error.h"

namespace edgellm {

// True where the call returned; what it throws is kept as the request's failure.
template <class Call>
bool Replay::guarded(Call&& call) {
  try {
    call();
    return true;
  } catch (const Error& error) {
    failure_ = {error.code(), error.what()};
  } catch (const std::exception& error) {
    failure_ = {ExitCode::kRuntime, error.what()};
  }
  return false;
}

SequenceRequest Replay::attempt() {
  n_repeated_ = 0;
  SequenceRequest attempt = request_;
  attempt.on_end = nullptr;
  const std::shared_ptr<Replay> self = shared_from_this();
  if (has_callbacks()) attempt.on_token = [self](int32_t id) { return self->take_token(id); };
  if (request_.on_logprobs) {
    attempt.on_logprobs = [self](int32_t id, const TokenLogprobs& logprobs) {
      if (self->n_repeated_ < self->ids_.size() || self->failure_) return;
      self->guarded([&] { self->request_.on_logprobs(id, logprobs); });
    };
  }
  if (request_.on_prompt_logprobs) {
    attempt.on_prompt_logprobs = [self](int position, const TokenLogprobs& logprobs) {
      self->take_prompt_logprobs(position, logprobs);
    };
  }
  if (request_.on_prompt_hidden) {
    attempt.on_prompt_hidden = [self](int position, std::span<const float> hidden) {
      self->take_prompt_hidden(position, hidden);
    };
  }
  return attempt;
}

// Whether anything is handed over before the end.
bool Replay::has_callbacks() const {
  return request_.on_token || request_.on_logprobs || request_.on_prompt_logprobs ||
         request_.on_prompt_hidden;
}

bool Replay::take_token(int32_t id) {
  if (failure_) return false;
  if (n_repeated_ < ids_.size()) {
    if (ids_[n_repeated_++] == id) return true;
    failure_ = {ExitCode::kRuntime,
                "the engine that ran the request has failed, and another one gives other tokens; "
                "please report this with the command"};
    return false;
  }
  ids_.push_back(id);
  ++n_repeated_;
  bool continues = true;
  return guarded([&] { continues = !request_.on_token || request_.on_token(id); }) && continues;
}

void Replay::take_prompt_logprobs(int position, const TokenLogprobs& logprobs) {
  if (position <= last_prompt_logprobs_ || failure_) return;
  last_prompt_logprobs_ = position;
  guarded([&] { request_.on_prompt_logprobs(position, logprobs); });
}

void Replay::take_prompt_hidden(int position, std::span<const float> hidden) {
  if (position <= last_prompt_hidden_ || failure_) return;
  last_prompt_hidden_ = position;
  guarded([&] { request_.on_prompt_hidden(position, hidden); });
}

SequenceResult Replay::result_of(SequenceResult&& result) const {
  if (failure_ && !result.failure) result.failure = failure_;
  return std::move(result);
}

}  // namespace edgellm
