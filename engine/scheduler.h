// Continuous batching: many requests over one backend, each answered with the ids that generate()
// would give it alone, whatever runs beside it.
//
// A step is one pass of the backend: a row for every sequence that is decoding and, in the room
// that is left, rows of prompts, those of the oldest first. Where all sequences decode greedily it
// is a run of such passes (Backend::decode_rows), so that a GPU need not wait for the host.
// Requests are admitted in the order in which they came, as soon as a slot and blocks for all that
// the request can need are unused: nothing that was admitted ever waits for memory. Prompts that
// begin with the same ids are stored and computed once (block_pool.h).
//
// One thread calls everything. Callbacks come from within step() and interrupt(); they may call
// submit() and the accessors, nothing else. What they throw passes through, and the scheduler can
// then only be destroyed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/backend.h"
#include "engine/block_pool.h"
#include "engine/generate.h"
#include "engine/sampling.h"

namespace edgellm {

// What became of a request.
struct SequenceResult {
  // A request that cannot run, or a sequence that met an error: the others go on.
  struct Failure {
    ExitCode code;
    std::string message;
  };

  std::vector<int32_t> token_ids;                      // with a failure: those before it
  FinishReason finish_reason = FinishReason::kLength;  // not with a failure
  std::optional<Failure> failure;
  int n_shared_prompt_ids = 0;          // taken from the cache, not computed
  int64_t queued_ns = 0;                // from submit() to admission
  int64_t prefill_ns = 0;               // from admission to the first id
  int64_t ttft_ns = 0;                  // from submit() to the first id
  int64_t total_ns = 0;                 // from submit() to the end
  std::vector<int64_t> inter_token_ns;  // gaps between ids, token_ids.size() - 1 of them
};

// The fields of GenerateRequest mean the same there.
struct SequenceRequest {
  std::vector<int32_t> prompt_ids;
  int max_tokens = -1;  // -1: until the context is full
  std::vector<int32_t> stop_ids;
  bool ignore_stop_ids = false;
  SamplingOptions sampling;
  std::function<bool(int32_t id)> on_token;      // false ends with kStopString; may be empty
  std::function<void(SequenceResult&&)> on_end;  // once for every request; may be empty
};

struct SchedulerOptions {
  // Rows of prompts that a pass with decoding sequences takes at most: bounds the gap between their
  // ids. 0: what max_rows() leaves.
  int prefill_rows = 0;
  // How long a run of passes goes on at most before step() returns. 0: always one pass.
  int64_t run_ns = 20'000'000;
};

struct SchedulerCounters {
  int64_t prompt_ids = 0;         // rows of prompts that were computed
  int64_t shared_prompt_ids = 0;  // that were not, but found in the cache
  int64_t decode_rows = 0;
  int64_t output_ids = 0;
  int64_t passes = 0;    // of which
  int64_t decodes = 0;   // those without a row of a prompt
  int64_t pass_ns = 0;   // in the backend
  int64_t requests = 0;  // that have ended,
  int64_t failures = 0;  // with a failure
};

class Scheduler {
 public:
  // `backend` must outlive the scheduler, which alone uses it. It has a paged cache (kv_blocks) and
  // at least as many rows as sequences.
  Scheduler(Backend& backend, const SchedulerOptions& options);
  ~Scheduler();

  void submit(SequenceRequest request);

  // Admits what there is room for and runs a pass, or several. False when nothing is left to do.
  bool step();

  // Ends every request with kInterrupted and the ids it has so far.
  void interrupt();

  size_t waiting() const { return waiting_.size(); }
  size_t active() const { return active_.size(); }
  const BlockPool& blocks() const { return pool_; }
  const SchedulerCounters& counters() const { return counters_; }

 private:
  struct Waiting {
    SequenceRequest request;
    int64_t submitted_at;
  };
  struct Sequence;
  // Rows of a sequence in the pass that is being made, one after the other.
  struct Part {
    Sequence* sequence;
    int rows;
    bool has_output;  // the last row gives an id
  };

  bool admit_first();
  std::string does_not_fit(const SequenceRequest& request, int n_positions) const;
  void run(const std::vector<Sequence*>& among);
  void run_alone(const std::vector<Part>& parts);
  bool decode_run(const std::vector<Sequence*>& among);
  int steps_to_end(const Sequence& sequence) const;
  void gather(const std::vector<Sequence*>& among);
  void add_rows(Sequence& sequence, std::span<const int32_t> ids);
  void forward();
  void take_results();
  int32_t choose(const Sequence& sequence, size_t output) const;
  void take_choice(Sequence& sequence, int32_t id);
  void take_id(Sequence& sequence, int32_t id);
  void end(Sequence& sequence, std::optional<SequenceResult::Failure> failure, FinishReason reason);
  void finish(const SequenceRequest& request, SequenceResult&& result, int64_t submitted_at);

  Backend& backend_;
  const SchedulerOptions options_;
  BlockPool pool_;
  std::deque<Waiting> waiting_;
  std::list<std::unique_ptr<Sequence>> active_;  // in the order of admission
  std::vector<int> free_slots_;
  SchedulerCounters counters_;

  // The pass that is being made.
  std::vector<Part> parts_;
  std::vector<int32_t> ids_, sequences_, positions_;  // [rows]
  std::vector<Sequence*> chosen_by_;  // of each output row; first those of which the backend
  std::vector<int32_t> output_rows_;  // chooses the id
  std::span<const int32_t> banned_;   // there
  std::vector<int32_t> argmax_;
  std::vector<float> logits_;
};

}  // namespace edgellm
