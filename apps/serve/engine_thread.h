// The thread that owns a model's scheduler. Other threads hand it requests and take their answers
// from LiveRequest; nobody else calls the scheduler or the back end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "apps/requests/sequence.h"
#include "apps/serve/event.h"
#include "apps/serve/live_request.h"
#include "apps/serve/metrics.h"
#include "engine/scheduler.h"
#include "tokenizer/tokenizer.h"

namespace edgellm::serve {

// As many requests wait as may.
struct QueueFull : std::runtime_error {
  explicit QueueFull(int seconds)
      : std::runtime_error("the queue is full"), retry_after_seconds(seconds) {}
  int retry_after_seconds;
};

// The engine cannot go on.
struct EngineFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct EngineThreadOptions {
  SchedulerOptions scheduler;
  int queue = 0;  // answers that may wait besides those that run
};

class EngineThread {
 public:
  // What is referred to must outlive the object. `tokenizer` may be null.
  EngineThread(Backend& backend, const Tokenizer* tokenizer, const EngineThreadOptions& options);

  ~EngineThread();

  // Ends what is running with kInterrupted. Nothing can be submitted afterwards.
  void stop();

  // Throws QueueFull, EngineFailed.
  void submit(const std::shared_ptr<LiveRequest>& request);

  // Ends what has not ended of the request. Its answers that were cancelled end with kInterrupted.
  void cancel(const std::shared_ptr<LiveRequest>& request);

  EngineState state() const;
  // Answers that were submitted and have not ended.
  int live() const { return live_; }
  // Why the engine cannot go on; empty where it can.
  std::string failure() const;

 private:
  struct Message {
    std::shared_ptr<LiveRequest> request;
    bool is_cancelled = false;
  };

  void work();
  void run(Scheduler& scheduler);
  bool await_messages(bool is_busy, std::vector<Message>& messages);
  void begin(Scheduler& scheduler, const std::shared_ptr<LiveRequest>& request);
  void begin_choice(Scheduler& scheduler, const std::shared_ptr<LiveRequest>& request,
                    size_t choice);
  void begin_embedding(Scheduler& scheduler, const std::shared_ptr<LiveRequest>& request,
                       size_t choice);
  void push(LiveRequest& request, Piece&& piece);
  // `last` is the answer's last piece but for the result.
  void end_choice(LiveRequest* request, Piece&& last, SequenceResult&& result);
  void publish(const Scheduler& scheduler);
  void fail(const std::string& message);
  int retry_after_seconds() const;

  Backend& backend_;
  const Tokenizer* const tokenizer_;
  const EngineThreadOptions options_;
  std::atomic<int> live_ = 0;
  std::atomic<bool> has_messages_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<Message> messages_;
  EngineState state_;
  std::string failure_;
  bool is_ending_ = false;

  // Of the engine's thread: the scheduler's ids of requests that have not ended.
  struct Running {
    std::shared_ptr<LiveRequest> request;
    std::vector<uint64_t> ids = {};  // by choice
    size_t n_unfinished = 0;
  };
  std::unordered_map<LiveRequest*, Running> running_;

  EventThread events_;  // tells connections' threads
  std::thread thread_;  // the last: it uses the others
};

}  // namespace edgellm::serve
