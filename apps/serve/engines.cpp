#include "apps/serve/engines.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace edgellm::serve {
namespace {

int sequences_of(const std::vector<Dispatcher::Engine>& engines) {
  int sequences = 0;
  for (const Dispatcher::Engine& engine : engines) sequences += engine.backend->info().sequences;
  return sequences;
}

}  // namespace

Engines::Engines(const std::vector<Dispatcher::Engine>& engines, const Tokenizer* tokenizer,
                 const EnginesOptions& options)
    : model_(engines.front().backend->model()),
      tokenizer_(tokenizer),
      queue_(options.queue),
      sequences_(sequences_of(engines)),
      dispatcher_(std::make_unique<Dispatcher>(engines, options.scheduler)) {}

Engines::~Engines() = default;

void Engines::submit(const std::shared_ptr<LiveRequest>& request) {
  if (const std::string failed = failure(); !failed.empty()) throw EngineFailed(failed);
  {
    const std::lock_guard guard(mutex_);
    // A request of many answers that finds any room is let in whole.
    if (live_ >= sequences_ + queue_) {
      ++counted_.refused;
      throw QueueFull(retry_after_seconds());
    }
    live_ += static_cast<int>(request->n_choices());
    running_[request.get()] = {.request = request, .n_unfinished = request->n_choices()};
  }
  for (size_t choice = 0; choice < request->n_choices(); ++choice) {
    if (request->pooling()) {
      begin_embedding(request, choice);
    } else {
      begin_choice(request, choice);
    }
  }
}

void Engines::cancel(const std::shared_ptr<LiveRequest>& request) {
  std::vector<uint64_t> ids;
  {
    const std::lock_guard guard(mutex_);
    const auto running = running_.find(request.get());
    if (running == running_.end()) return;
    ids = running->second.ids;
  }
  for (const uint64_t id : ids) dispatcher_->cancel(id);
}

std::string Engines::failure() const {
  const auto failure = dispatcher_->failure();
  return failure ? failure->message : "";
}

EngineState Engines::state() const {
  const std::vector<EngineStatus> devices = dispatcher_->status();
  const size_t waiting = dispatcher_->waiting();
  const std::lock_guard guard(mutex_);
  EngineState state = counted_;
  state.waiting = waiting;
  for (const EngineStatus& device : devices) {
    state.running += device.active;
    state.failed_devices += device.failure ? 1 : 0;
    state.kv_blocks += device.failure ? 0 : device.kv_blocks;
    state.kv_blocks_used += device.kv_blocks_used;
    state.kv_blocks_cached += device.kv_blocks_cached;
    state.memory.weights += device.memory.weights;
    state.memory.certified_head += device.memory.certified_head;
    state.memory.kv_cache += device.memory.kv_cache;
    state.memory.workspace += device.memory.workspace;
    state.counters.add(device.counters);
  }
  state.devices = devices;
  return state;
}

// About when a place is free: the mean time of an answer, shared by those that run together.
// mutex_ is held.
int Engines::retry_after_seconds() const {
  const auto count = static_cast<double>(std::max<uint64_t>(1, counted_.duration.count()));
  const double seconds = counted_.duration.sum() / count / sequences_;
  return static_cast<int>(std::clamp(std::ceil(seconds), 1.0, 60.0));
}

void Engines::add_id(LiveRequest* request, uint64_t id) {
  const std::lock_guard guard(mutex_);
  const auto running = running_.find(request);  // not there where all answers have ended
  if (running != running_.end()) running->second.ids.push_back(id);
}

// ---- Answers, of the engines' threads -------------------------------------------------------

void Engines::begin_embedding(const std::shared_ptr<LiveRequest>& request, size_t choice) {
  LiveRequest* const live = request.get();
  const auto pool = std::make_shared<EmbeddingPool>(*request->pooling());
  SequenceRequest sequence;
  sequence.prompt_ids = request->prompt_of(choice);
  sequence.max_tokens = 0;
  sequence.on_prompt_hidden = [pool](int, std::span<const float> hidden) { pool->add(hidden); };
  sequence.on_end = [this, pool, live, choice](SequenceResult&& result) {
    end_choice(live, {.choice = choice, .embedding = pool->embedding()}, std::move(result));
  };
  add_id(live, dispatcher_->submit(std::move(sequence)));
}

void Engines::begin_choice(const std::shared_ptr<LiveRequest>& request, size_t choice) {
  const AnswerRequest& wanted = request->wanted();
  const ModelFile& model = model_;
  SequenceRequest sequence =
      sequence_request(wanted, request->prompt_of(choice),
                       static_cast<int>(choice % static_cast<size_t>(wanted.n)), model);
  const auto text = std::make_shared<std::optional<AnswerText>>();
  if (tokenizer_ != nullptr) text->emplace(*tokenizer_, wanted, request->prompt_of(choice));
  LiveRequest* const live = request.get();
  // The piece of the token that is being reported.
  const auto piece = std::make_shared<Piece>();
  piece->choice = choice;
  if (wanted.top_logprobs) {
    sequence.on_logprobs = [piece, &model](int32_t id, const TokenLogprobs& logprobs) {
      if (!is_stop_id(model, id)) piece->logprobs.push_back({id, logprobs});
    };
    if (wanted.echo) {
      sequence.on_prompt_logprobs = [piece, live, choice](int position,
                                                          const TokenLogprobs& logprobs) {
        piece->prompt_logprobs.push_back(
            {live->prompt_of(choice)[static_cast<size_t>(position)], logprobs});
      };
    }
  }
  sequence.on_token = [this, piece, text, live, choice, &model](int32_t id) {
    const bool has_text = *text && !is_stop_id(model, id);
    if (has_text) piece->text = (*text)->push(id);
    piece->ids = {id};
    push(*live, std::exchange(*piece, Piece{.choice = choice}));
    return !has_text || !(*text)->stopped();
  };
  sequence.on_end = [this, piece, text, live](SequenceResult&& result) {
    if (*text) piece->text = (*text)->finish();
    end_choice(live, std::move(*piece), std::move(result));
  };
  add_id(live, dispatcher_->submit(std::move(sequence)));
}

void Engines::end_choice(LiveRequest* request, Piece&& last, SequenceResult&& result) {
  std::shared_ptr<LiveRequest> kept;
  {
    const std::lock_guard guard(mutex_);
    if (result.finish_reason == FinishReason::kInterrupted && !result.failure) {
      ++counted_.cancelled;
    } else if (!result.failure) {
      if (!result.token_ids.empty()) counted_.ttft.add(result.ttft_ns);
      for (const int64_t ns : result.inter_token_ns) counted_.inter_token.add(ns);
      counted_.duration.add(result.total_ns);
    }
    const auto running = running_.find(request);
    kept = running->second.request;
    if (--running->second.n_unfinished == 0) running_.erase(running);
  }
  last.end = std::move(result);
  --live_;
  push(*kept, std::move(last));
}

void Engines::push(LiveRequest& request, Piece&& piece) {
  if (request.push(std::move(piece))) events_.set(request.event());
}

}  // namespace edgellm::serve
