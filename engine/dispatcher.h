// Several engines that run the same model, as one: a scheduler and a thread for each, and one queue
// before them (dispatch_policy.h). A request gets the ids that generate() would give it, whichever
// engine runs it.
//
// An engine that fails is taken out. Its requests go to the others, which begin them anew; whoever
// asked sees no id twice (replay.h). A request that two engines have failed with gets a failure, so
// that one that no engine survives does not end them all. When none is left, every request fails.
//
// Any thread may call everything. Callbacks of requests come from the engines' threads, for one
// request by one at a time, and from stop(), cancel() and submit() where a request ends without an
// engine. They may call submit(), and wait for nothing that needs an engine. An on_end throws
// nothing; what another callback throws is the failure of its request.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/dispatch_policy.h"
#include "engine/replay.h"
#include "engine/scheduler.h"

namespace edgellm {

// What an engine is doing, as of its last step.
struct EngineStatus {
  std::string device;                              // BackendInfo::device
  std::optional<SequenceResult::Failure> failure;  // why it was taken out
  size_t active = 0;
  int kv_blocks = 0;
  int kv_blocks_used = 0;
  int kv_blocks_cached = 0;
  MemoryPlan memory;
  SchedulerCounters counters;
  int64_t n_taken_over = 0;  // requests that it had when it failed
  // Over its steps, for means.
  int64_t steps = 0;
  double active_sum = 0;
  double kv_used_sum = 0;
  size_t most_active = 0;
  int most_kv_used = 0;
};

class Dispatcher {
 public:
  struct Engine {
    Backend* backend = nullptr;  // must outlive the dispatcher, which alone uses it
    std::vector<int> cpus = {};  // cores for the engine's thread; empty: any
  };

  // The engines have the same model and as many positions. `wants_control` of the options is the
  // dispatcher's own.
  Dispatcher(const std::vector<Engine>& engines, const SchedulerOptions& options);
  ~Dispatcher();  // stop()
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // Returns the request's id, which no other request has.
  uint64_t submit(SequenceRequest request);

  // Ends the request with kInterrupted, soon, if it has not ended.
  void cancel(uint64_t id);

  // Forgets the requests that no engine has; none of their callbacks is called.
  void drop_waiting();

  // Ends every request with kInterrupted, and the threads. Nothing may be submitted afterwards.
  void stop();

  size_t waiting() const;  // requests that no engine has
  // Requests that have not ended. One that an engine has ended counts until the engine's step is
  // over.
  size_t live() const;
  // In the order of the constructor.
  std::vector<EngineStatus> status() const;
  // Why no request can run: the last engine's failure. Empty while an engine works.
  std::optional<SequenceResult::Failure> failure() const;

 private:
  // A request that has not ended.
  struct Task {
    uint64_t id = 0;
    std::shared_ptr<Replay> replay;
    // The first attempt, until it begins. Whoever submits makes it: a GPU may be idle while an
    // engine's thread begins requests.
    std::optional<SequenceRequest> first_attempt = {};
    // Of the engine's thread: the scheduler's id, from the begin of an attempt to its end.
    std::optional<uint64_t> scheduled = {};
    std::optional<size_t> engine = {};  // empty: it waits
    int n_blocks = 0;                   // DispatchPolicy::Assignment
    int n_failed_engines = 0;
    bool is_cancelled = false;
    bool is_over = false;  // its end is being reported
  };
  using TaskPtr = std::shared_ptr<Task>;
  struct Message {
    TaskPtr task;
    bool is_cancelled = false;
  };
  struct Worker {
    size_t index = 0;
    Engine engine;
    std::atomic<bool> has_messages = false;
    std::condition_variable changed;
    // Guarded by mutex_.
    std::vector<Message> inbox;
    EngineStatus status;
    // Of the worker's thread: ids of the tasks that have ended since mutex_ was last held.
    std::vector<uint64_t> ended = {};
    std::thread thread;
  };
  // A request that ends without an engine.
  struct Ended {
    TaskPtr task;
    SequenceResult result;
  };

  void work(Worker& worker);
  void run(Worker& worker, Scheduler& scheduler);
  bool await_messages(Worker& worker, bool is_busy, std::vector<Message>& messages);
  void begin(Worker& worker, Scheduler& scheduler, const TaskPtr& task);
  void end(Worker& worker, const TaskPtr& task, SequenceResult&& result);
  void publish(Worker& worker, const Scheduler& scheduler);
  void settle(Worker& worker);
  void fail(Worker& worker, const SequenceResult::Failure& failure);
  void enqueue(const TaskPtr& task, bool in_front);
  void dispatch();
  void post(Worker& worker, Message message);
  void add_ended(std::vector<Ended>& ended, const TaskPtr& task,
                 const std::optional<SequenceResult::Failure>& failure = {});
  void report(std::vector<Ended>& ended);

  const SchedulerOptions options_;
  const int context_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  DispatchPolicy policy_;
  std::unordered_map<uint64_t, TaskPtr> tasks_;
  uint64_t last_id_ = 0;
  std::optional<SequenceResult::Failure> failure_;
  bool is_ending_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;  // the last: their threads use the others
};

}  // namespace edgellm
