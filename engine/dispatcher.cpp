#include "engine/dispatcher.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/block_pool.h"
#include "kernels/cpu/machine.h"

namespace edgellm {
namespace {

// With so many failed engines a request is the likely cause.
constexpr int kMostFailedEngines = 2;

std::vector<DispatchPolicy::Engine> limits_of(const std::vector<Dispatcher::Engine>& engines) {
  std::vector<DispatchPolicy::Engine> limits;
  for (const Dispatcher::Engine& engine : engines) {
    limits.push_back({engine.backend->info().sequences, engine.backend->info().kv_blocks});
  }
  return limits;
}

int context_of(const std::vector<Dispatcher::Engine>& engines) {
  require(!engines.empty(), "a dispatcher has an engine");
  const int context = engines.front().backend->info().context;
  for (const Dispatcher::Engine& engine : engines) {
    require(engine.backend->info().context == context, "engines have as many positions");
  }
  return context;
}

}  // namespace

Dispatcher::Dispatcher(const std::vector<Engine>& engines, const SchedulerOptions& options)
    : options_(options), context_(context_of(engines)), policy_(limits_of(engines)) {
  for (const Engine& engine : engines) {
    auto worker = std::make_unique<Worker>();
    worker->index = workers_.size();
    worker->engine = engine;
    worker->status.device = engine.backend->info().device;
    worker->status.kv_blocks = engine.backend->info().kv_blocks;
    workers_.push_back(std::move(worker));
  }
  for (const auto& worker : workers_) {
    worker->thread = std::thread([this, to = worker.get()] { work(*to); });
  }
}

Dispatcher::~Dispatcher() { stop(); }

// ---- Of other threads -----------------------------------------------------------------------

uint64_t Dispatcher::submit(SequenceRequest request) {
  if (request.submitted_at == 0) request.submitted_at = now_ns();
  const auto task = std::make_shared<Task>();
  task->replay = std::make_shared<Replay>(std::move(request));
  task->first_attempt = task->replay->attempt();
  std::vector<Ended> ended;
  {
    const std::lock_guard guard(mutex_);
    task->id = ++last_id_;
    if (failure_ || is_ending_) {
      add_ended(ended, task, failure_);
    } else {
      tasks_.emplace(task->id, task);
      enqueue(task, /*in_front=*/false);
      dispatch();
    }
  }
  report(ended);
  return task->id;
}

void Dispatcher::cancel(uint64_t id) {
  std::vector<Ended> ended;
  {
    const std::lock_guard guard(mutex_);
    const auto found = tasks_.find(id);
    if (found == tasks_.end()) return;
    const TaskPtr task = found->second;
    task->is_cancelled = true;
    if (task->engine) {
      post(*workers_[*task->engine], {task, /*is_cancelled=*/true});
    } else if (!task->is_over) {
      policy_.remove(id);
      add_ended(ended, task);
    }
  }
  report(ended);
}

void Dispatcher::drop_waiting() {
  const std::lock_guard guard(mutex_);
  for (const uint64_t id : policy_.remove_all()) tasks_.erase(id);
}

void Dispatcher::stop() {
  std::vector<Ended> ended;
  {
    const std::lock_guard guard(mutex_);
    is_ending_ = true;
    for (const uint64_t id : policy_.remove_all()) add_ended(ended, tasks_.at(id));
    for (const auto& worker : workers_) {
      worker->has_messages = true;
      worker->changed.notify_one();
    }
  }
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
  report(ended);
}

size_t Dispatcher::waiting() const {
  const std::lock_guard guard(mutex_);
  return policy_.waiting();
}

size_t Dispatcher::live() const {
  const std::lock_guard guard(mutex_);
  return tasks_.size();
}

std::vector<EngineStatus> Dispatcher::status() const {
  const std::lock_guard guard(mutex_);
  std::vector<EngineStatus> all;
  for (const auto& worker : workers_) all.push_back(worker->status);
  return all;
}

std::optional<SequenceResult::Failure> Dispatcher::failure() const {
  const std::lock_guard guard(mutex_);
  return failure_;
}

// A request that ends without an engine, interrupted unless it failed. mutex_ is held.
void Dispatcher::add_ended(std::vector<Ended>& ended, const TaskPtr& task,
                           const std::optional<SequenceResult::Failure>& failure) {
  task->engine.reset();
  task->is_over = true;
  SequenceResult result;
  result.finish_reason = FinishReason::kInterrupted;
  result.failure = failure;
  ended.push_back({task, std::move(result)});
}

// mutex_ is not held.
void Dispatcher::report(std::vector<Ended>& ended) {
  if (ended.empty()) return;
  for (Ended& one : ended) {
    const SequenceRequest& request = one.task->replay->request();
    one.result.queued_ns = one.result.total_ns = now_ns() - request.submitted_at;
    if (request.on_end) request.on_end(std::move(one.result));
  }
  const std::lock_guard guard(mutex_);
  for (const Ended& one : ended) tasks_.erase(one.task->id);
}

// ---- The queue, with mutex_ held ------------------------------------------------------------

void Dispatcher::enqueue(const TaskPtr& task, bool in_front) {
  const SequenceRequest& request = task->replay->request();
  const bool is_watched = request.on_prompt_logprobs || request.on_prompt_hidden;
  task->engine.reset();
  task->scheduled.reset();
  policy_.add(
      {.id = task->id,
       .prefix = is_watched || workers_.size() == 1 ? std::vector<uint64_t>()
                                                    : KnownPrefixes::hashes_of(request.prompt_ids),
       .n_blocks = BlockPool::blocks_for(positions_for(request, context_))},
      in_front);
}

// Hands out requests as long as an engine has room.
void Dispatcher::dispatch() {
  while (const std::optional<DispatchPolicy::Assignment> next = policy_.next()) {
    const TaskPtr& task = tasks_.at(next->id);
    task->engine = next->engine;
    task->n_blocks = next->n_blocks;
    post(*workers_[next->engine], {task});
  }
}

void Dispatcher::post(Worker& worker, Message message) {
  worker.inbox.push_back(std::move(message));
  worker.has_messages = true;
  worker.changed.notify_one();
}

// ---- The engines' threads -------------------------------------------------------------------

void Dispatcher::work(Worker& worker) {
  SequenceResult::Failure failure;
  try {
    cpu::bind_this_thread(worker.engine.cpus);
    SchedulerOptions options = options_;
    options.wants_control = [&worker] {
      return worker.has_messages.load(std::memory_order_relaxed);
    };
    Scheduler scheduler(*worker.engine.backend, options);
    run(worker, scheduler);
    return;
  } catch (const Error& error) {
    failure = {error.code(), error.what()};
  } catch (const std::exception& error) {
    failure = {ExitCode::kRuntime, error.what()};
  }
  // The scheduler is gone: no callback of its requests comes any more.
  fail(worker, failure);
}

void Dispatcher::run(Worker& worker, Scheduler& scheduler) {
  bool is_busy = false;
  std::vector<Message> messages;
  while (await_messages(worker, is_busy, messages)) {
    for (const Message& message : std::exchange(messages, {})) {
      if (!message.is_cancelled) {
        begin(worker, scheduler, message.task);
      } else if (message.task->scheduled) {
        scheduler.cancel(*message.task->scheduled);
      }
    }
    is_busy = scheduler.step();
    publish(worker, scheduler);
    if (!is_busy && !worker.has_messages) scheduler.release_ended();
  }
  for (const Message& message : messages) {
    if (!message.is_cancelled) begin(worker, scheduler, message.task);
  }
  scheduler.interrupt();
  publish(worker, scheduler);
}

// False at the end. Waits only where the scheduler has nothing to do.
bool Dispatcher::await_messages(Worker& worker, bool is_busy, std::vector<Message>& messages) {
  std::unique_lock lock(mutex_);
  if (!is_busy) worker.changed.wait(lock, [&worker] { return worker.has_messages.load(); });
  messages = std::exchange(worker.inbox, {});
  worker.has_messages = is_ending_;
  return !is_ending_;
}

void Dispatcher::begin(Worker& worker, Scheduler& scheduler, const TaskPtr& task) {
  SequenceRequest request =
      task->first_attempt ? std::move(*task->first_attempt) : task->replay->attempt();
  task->first_attempt.reset();
  request.on_end = [this, &worker, task](SequenceResult&& result) {
    end(worker, task, std::move(result));
  };
  task->scheduled = scheduler.submit(std::move(request));
}

void Dispatcher::end(Worker& worker, const TaskPtr& task, SequenceResult&& result) {
  task->scheduled.reset();
  worker.ended.push_back(task->id);
  const SequenceRequest& request = task->replay->request();
  if (request.on_end) request.on_end(task->replay->result_of(std::move(result)));
}

// Takes what the engine has ended out of the books, many requests with one lock. mutex_ is held.
void Dispatcher::settle(Worker& worker) {
  for (const uint64_t id : worker.ended) {
    tasks_.erase(id);
    policy_.ended(worker.index);
  }
  worker.ended.clear();
}

void Dispatcher::publish(Worker& worker, const Scheduler& scheduler) {
  const BlockPool& blocks = scheduler.blocks();
  const std::lock_guard guard(mutex_);
  settle(worker);
  EngineStatus& status = worker.status;
  status.active = scheduler.active();
  status.kv_blocks_used = blocks.used();
  status.kv_blocks_cached = blocks.cached();
  status.memory = worker.engine.backend->memory();
  status.counters = scheduler.counters();
  ++status.steps;
  status.active_sum += static_cast<double>(status.active);
  status.kv_used_sum += status.kv_blocks_used;
  status.most_active = std::max(status.most_active, status.active);
  status.most_kv_used = std::max(status.most_kv_used, status.kv_blocks_used);
  // What came during the step is not in the pool yet. A request that the engine could not admit
  // shows that the policy has estimated too little: it gets no other before that one runs.
  int free = scheduler.waiting() > 0 ? 0 : blocks.total() - blocks.used();
  for (const Message& message : worker.inbox) {
    if (!message.is_cancelled) free -= message.task->n_blocks;
  }
  policy_.set_free_blocks(worker.index, free);
  dispatch();
}

void Dispatcher::fail(Worker& worker, const SequenceResult::Failure& failure) {
  std::vector<Ended> ended;
  std::vector<TaskPtr> again;
  bool is_last = false;
  {
    const std::lock_guard guard(mutex_);
    settle(worker);
    worker.status.failure = failure;
    worker.status.active = 0;
    worker.status.kv_blocks_used = worker.status.kv_blocks_cached = 0;
    worker.inbox.clear();
    policy_.take_out(worker.index);
    is_last = std::ranges::all_of(workers_,
                                  [](const auto& one) { return one->status.failure.has_value(); });
    if (is_last) failure_ = failure;
    for (const auto& [id, task] : tasks_) {
      if (task->is_over) continue;
      if (task->engine != worker.index) {
        if (is_last) again.push_back(task);
        continue;
      }
      ++worker.status.n_taken_over;
      if (task->scheduled) ++task->n_failed_engines;  // else it had not begun
      again.push_back(task);
    }
    // The oldest shall be the first of the queue.
    std::ranges::sort(again, std::greater(), [](const TaskPtr& task) { return task->id; });
    for (const TaskPtr& task : again) {
      const bool is_over = task->is_cancelled || is_ending_;
      if (!is_over && !is_last && task->n_failed_engines < kMostFailedEngines) {
        enqueue(task, /*in_front=*/true);
        continue;
      }
      policy_.remove(task->id);
      add_ended(ended, task, is_over ? std::nullopt : std::optional(failure));
    }
    dispatch();
  }
  if (workers_.size() == 1) return report(ended);  // whoever asked for the failure says it
  log(LogLevel::kError,
      worker.status.device + " (device " + std::to_string(worker.index + 1) + " of " +
          std::to_string(workers_.size()) + ") failed and is taken out: " + failure.message +
          (is_last ? "; none is left"
                   : "; the others take over its " + std::to_string(again.size()) + " requests"));
  report(ended);
}

}  // namespace edgellm
