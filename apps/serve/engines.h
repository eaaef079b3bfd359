// What answers the requests of a loaded model: an engine on each of its devices
// (engine/dispatcher.h). Requests go in here, and their answers come out of LiveRequest.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "apps/requests/sequence.h"
#include "apps/serve/event.h"
#include "apps/serve/live_request.h"
#include "apps/serve/metrics.h"
#include "engine/dispatcher.h"
#include "tokenizer/tokenizer.h"

namespace edgellm::serve {

// As many requests wait as may.
struct QueueFull : std::runtime_error {
  explicit QueueFull(int seconds)
      : std::runtime_error("the queue is full"), retry_after_seconds(seconds) {}
  int retry_after_seconds;
};

// No engine of the model works any more.
struct EngineFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct EnginesOptions {
  SchedulerOptions scheduler;
  int queue = 0;  // answers that may wait besides those that run
};

class Engines {
 public:
  // What is referred to must outlive the object. `tokenizer` may be null.
  Engines(const std::vector<Dispatcher::Engine>& engines, const Tokenizer* tokenizer,
          const EnginesOptions& options);

  ~Engines();

  // Ends what is running with kInterrupted. Nothing can be submitted afterwards.
  void stop() { dispatcher_->stop(); }

  // Throws QueueFull, EngineFailed.
  void submit(const std::shared_ptr<LiveRequest>& request);

  // Ends what has not ended of the request. Its answers that were cancelled end with kInterrupted.
  void cancel(const std::shared_ptr<LiveRequest>& request);

  // Of all engines together.
  EngineState state() const;
  // Answers that can be made at the same time.
  int sequences() const { return sequences_; }
  // Answers that were submitted and have not ended.
  int live() const { return live_; }
  // Why no engine can go on; empty where one can.
  std::string failure() const;

 private:
  void add_id(LiveRequest* request, uint64_t id);
  void begin_choice(const std::shared_ptr<LiveRequest>& request, size_t choice);
  void begin_embedding(const std::shared_ptr<LiveRequest>& request, size_t choice);
  void push(LiveRequest& request, Piece&& piece);
  // `last` is the answer's last piece but for the result.
  void end_choice(LiveRequest* request, Piece&& last, SequenceResult&& result);
  int retry_after_seconds() const;

  const ModelFile& model_;
  const Tokenizer* const tokenizer_;
  const int queue_;
  const int sequences_;
  std::atomic<int> live_ = 0;

  // Not held while the dispatcher is called: it calls back.
  mutable std::mutex mutex_;
  // Guarded by mutex_: requests that have not ended, with the dispatcher's ids, and what is counted
  // here. The dispatcher counts the rest.
  struct Running {
    std::shared_ptr<LiveRequest> request;
    std::vector<uint64_t> ids = {};  // by choice
    size_t n_unfinished = 0;
  };
  std::unordered_map<LiveRequest*, Running> running_;
  EngineState counted_;

  EventThread events_;                      // tells connections' threads
  std::unique_ptr<Dispatcher> dispatcher_;  // the last: its threads use the others
};

}  // namespace edgellm::serve
