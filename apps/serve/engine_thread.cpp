#include "apps/serve/engine_thread.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace edgellm::serve {

EngineThread::EngineThread(Backend& backend, const Tokenizer* tokenizer,
                           const EngineThreadOptions& options)
    : backend_(backend), tokenizer_(tokenizer), options_(options), thread_([this] { work(); }) {}

EngineThread::~EngineThread() { stop(); }

void EngineThread::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard guard(mutex_);
    is_ending_ = true;
    has_messages_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

// ---- Of other threads -----------------------------------------------------------------------

void EngineThread::submit(const std::shared_ptr<LiveRequest>& request) {
  {
    const std::lock_guard guard(mutex_);
    if (!failure_.empty()) throw EngineFailed(failure_);
    // A request of many answers that finds any room is let in whole.
    if (live_ >= backend_.info().sequences + options_.queue) {
      ++state_.refused;
      throw QueueFull(retry_after_seconds());
    }
    live_ += static_cast<int>(request->n_choices());
    messages_.push_back({request});
    has_messages_ = true;
  }
  changed_.notify_one();
}

void EngineThread::cancel(const std::shared_ptr<LiveRequest>& request) {
  {
    const std::lock_guard guard(mutex_);
    messages_.push_back({request, /*is_cancelled=*/true});
    has_messages_ = true;
  }
  changed_.notify_one();
}

EngineState EngineThread::state() const {
  const std::lock_guard guard(mutex_);
  return state_;
}

std::string EngineThread::failure() const {
  const std::lock_guard guard(mutex_);
  return failure_;
}

// About when a place is free: the mean time of an answer, shared by those that run together.
// mutex_ is held.
int EngineThread::retry_after_seconds() const {
  const auto count = static_cast<double>(std::max<uint64_t>(1, state_.duration.count()));
  const double seconds = state_.duration.sum() / count / backend_.info().sequences;
  return static_cast<int>(std::clamp(std::ceil(seconds), 1.0, 60.0));
}

// ---- The engine's thread --------------------------------------------------------------------

void EngineThread::work() {
  try {
    SchedulerOptions options = options_.scheduler;
    options.wants_control = [this] { return has_messages_.load(std::memory_order_relaxed); };
    Scheduler scheduler(backend_, options);
    publish(scheduler);
    run(scheduler);
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void EngineThread::run(Scheduler& scheduler) {
  bool is_busy = false;
  std::vector<Message> messages;
  while (await_messages(is_busy, messages)) {
    for (const Message& message : std::exchange(messages, {})) {
      if (!message.is_cancelled) {
        begin(scheduler, message.request);
        continue;
      }
      const auto running = running_.find(message.request.get());
      if (running == running_.end()) continue;
      for (const uint64_t id : std::vector<uint64_t>(running->second.ids)) scheduler.cancel(id);
    }
    is_busy = scheduler.step();
    publish(scheduler);
  }
  scheduler.interrupt();
}

// False at the end. Waits only where the scheduler has nothing to do.
bool EngineThread::await_messages(bool is_busy, std::vector<Message>& messages) {
  std::unique_lock lock(mutex_);
  if (!is_busy) changed_.wait(lock, [this] { return has_messages_.load(); });
  messages = std::exchange(messages_, {});
  has_messages_ = false;
  return !is_ending_;
}

void EngineThread::begin(Scheduler& scheduler, const std::shared_ptr<LiveRequest>& request) {
  Running& running = running_[request.get()];
  running = {.request = request, .ids = {}, .n_unfinished = request->n_choices()};
  for (size_t choice = 0; choice < request->n_choices(); ++choice) {
    if (request->pooling()) {
      begin_embedding(scheduler, request, choice);
    } else {
      begin_choice(scheduler, request, choice);
    }
  }
}

void EngineThread::begin_embedding(Scheduler& scheduler,
                                   const std::shared_ptr<LiveRequest>& request, size_t choice) {
  LiveRequest* const live = request.get();
  const auto pool = std::make_shared<EmbeddingPool>(*request->pooling());
  SequenceRequest sequence;
  sequence.prompt_ids = request->prompt_of(choice);
  sequence.max_tokens = 0;
  sequence.on_prompt_hidden = [pool](int, std::span<const float> hidden) { pool->add(hidden); };
  sequence.on_end = [this, pool, live, choice](SequenceResult&& result) {
    end_choice(live, {.choice = choice, .embedding = pool->embedding()}, std::move(result));
  };
  running_.at(live).ids.push_back(scheduler.submit(std::move(sequence)));
}

void EngineThread::begin_choice(Scheduler& scheduler, const std::shared_ptr<LiveRequest>& request,
                                size_t choice) {
  const AnswerRequest& wanted = request->wanted();
  const ModelFile& model = backend_.model();
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
  running_.at(live).ids.push_back(scheduler.submit(std::move(sequence)));
}

void EngineThread::end_choice(LiveRequest* request, Piece&& last, SequenceResult&& result) {
  {
    const std::lock_guard guard(mutex_);
    if (result.finish_reason == FinishReason::kInterrupted && !result.failure) {
      ++state_.cancelled;
    } else if (!result.failure) {
      if (!result.token_ids.empty()) state_.ttft.add(result.ttft_ns);
      for (const int64_t ns : result.inter_token_ns) state_.inter_token.add(ns);
      state_.duration.add(result.total_ns);
    }
  }
  last.end = std::move(result);
  --live_;
  const auto running = running_.find(request);
  const std::shared_ptr<LiveRequest> kept = running->second.request;
  if (--running->second.n_unfinished == 0) running_.erase(running);
  push(*kept, std::move(last));
}

void EngineThread::push(LiveRequest& request, Piece&& piece) {
  if (request.push(std::move(piece))) events_.set(request.event());
}

void EngineThread::publish(const Scheduler& scheduler) {
  const std::lock_guard guard(mutex_);
  state_.waiting = scheduler.waiting();
  state_.running = scheduler.active();
  state_.kv_blocks = scheduler.blocks().total();
  state_.kv_blocks_used = scheduler.blocks().used();
  state_.kv_blocks_cached = scheduler.blocks().cached();
  state_.memory = backend_.memory();
  state_.counters = scheduler.counters();
}

// Every request that is live ends with the failure.
void EngineThread::fail(const std::string& message) {
  log(LogLevel::kError, "the engine ends: " + message);
  std::vector<Message> messages;
  {
    const std::lock_guard guard(mutex_);
    failure_ = message;
    messages = std::exchange(messages_, {});
  }
  for (const Message& unread : messages) {
    if (!unread.is_cancelled) running_[unread.request.get()] = {.request = unread.request};
  }
  for (const auto& [live, running] : std::exchange(running_, {})) {
    for (size_t choice = 0; choice < live->n_choices(); ++choice) {
      Piece last = {.choice = choice};
      last.end.emplace().failure = {ExitCode::kRuntime, message};
      push(*live, std::move(last));
    }
  }
  live_ = 0;
}

}  // namespace edgellm::serve
