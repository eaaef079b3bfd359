// Continuous batching: many requests over one backend. Each request gets the ids that generate()
// would give it alone, no matter which requests run beside it.
//
// A pass of the backend has a row for every sequence that decodes and, in the rows that are left,
// ids of prompts, the oldest prompt first. Where all sequences decode the scheduler asks for many
// passes with one call (Backend::decode_rows), so that a GPU need not wait for the host.
//
// Requests are admitted in the order in which they came. A request is admitted as soon as a slot
// and blocks for all positions that it can need are free, so nothing that was admitted ever waits
// for memory. Prompts that begin with the same ids are stored and computed once (block_pool.h).
//
// One thread calls everything. Callbacks come from within step(), cancel() and interrupt(); they
// may call submit() and the accessors, nothing else. What they throw passes through, and the
// scheduler can then only be destroyed. The callbacks of a request that has ended are destroyed by
// the next step() that runs a pass, on a GPU while that runs, or by release_ended().
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
  // Why a request could not run, or which error ended its sequence. Other sequences continue.
  struct Failure {
    ExitCode code;
    std::string message;
  };

  std::vector<int32_t> token_ids;                      // with a failure: those before it
  FinishReason finish_reason = FinishReason::kLength;  // not with a failure
  std::optional<Failure> failure;
  int n_shared_prompt_ids = 0;          // found in the cache, so not computed
  int64_t queued_ns = 0;                // from submit() to admission
  int64_t prefill_ns = 0;               // from admission to the first id
  int64_t ttft_ns = 0;                  // from submit() to the first id
  int64_t total_ns = 0;                 // from submit() to the end
  std::vector<int64_t> inter_token_ns;  // inter-token latencies, token_ids.size() - 1 of them
};

// The fields of GenerateRequest mean the same there.
struct SequenceRequest {
  std::vector<int32_t> prompt_ids;
  int max_tokens = -1;  // -1: until the context is full; 0: none, the prompt alone is computed
  std::vector<int32_t> stop_ids;
  bool ignore_stop_ids = false;
  SamplingOptions sampling;
  int top_logprobs = 0;  // of the most probable ids beside each id
  // Before on_token(id); may be empty. Such a request makes every pass one of its own: no run of
  // passes for all decoding sequences.
  std::function<void(int32_t id, const TokenLogprobs&)> on_logprobs;
  // The log-probability of the prompt's id at `position` (from 1 on) behind the ids before it, as
  // on_logprobs gives those of the answer; in ascending order, before the first on_token. May be
  // empty. Such a prompt is computed whole: it takes no blocks from the prefix cache and leaves
  // none there.
  std::function<void(int position, const TokenLogprobs&)> on_prompt_logprobs;
  // What the final norm gives for the prompt's id at `position`, [dim] values: of each id, in
  // order, before the first on_token. May be empty. Such a prompt is computed whole as well.
  std::function<void(int position, std::span<const float> hidden)> on_prompt_hidden;
  int64_t submitted_at = 0;                      // now_ns() of when it came; 0: at submit()
  std::function<bool(int32_t id)> on_token;      // false ends with kStopString; may be empty
  std::function<void(SequenceResult&&)> on_end;  // once for every request; may be empty
};

// The most positions of a context that the request can need, its prompt's included. The last id is
// not fed.
int positions_for(const SequenceRequest& request, int context);

// Rows that prompts get of a pass even where max_batch_tokens leaves none.
inline constexpr int kMinPromptRows = 16;

struct SchedulerOptions {
  // The most rows of a pass that also decodes: they bound the inter-token latency of the decoding
  // sequences. Prompts get kMinPromptRows at least. 0: as many as the backend takes.
  int max_batch_tokens = 0;
  // The time after which step() returns from a run of passes. 0: step() runs one pass.
  int64_t run_ns = 20'000'000;
  // Polled between the passes of a run: true lets step() return early, because the caller has
  // something to submit or to cancel. May be empty.
  std::function<bool()> wants_control = {};
};

struct SchedulerCounters {
  int64_t prompt_ids = 0;         // computed: rows of prompts
  int64_t shared_prompt_ids = 0;  // found in the cache, so not computed
  int64_t decode_rows = 0;
  int64_t output_ids = 0;
  int64_t passes = 0;
  int64_t decodes = 0;   // passes without a row of a prompt
  int64_t pass_ns = 0;   // in the backend
  int64_t requests = 0;  // that have ended
  int64_t failures = 0;  // requests that have ended with a failure

  void add(const SchedulerCounters& other);
};

class Scheduler {
 public:
  // `backend` must outlive the scheduler, which alone uses it. It has a paged cache (kv_blocks) and
  // at least as many rows as sequences.
  Scheduler(Backend& backend, const SchedulerOptions& options);
  ~Scheduler();

  // Returns the request's id, which no other request of this scheduler has.
  uint64_t submit(SequenceRequest request);

  // Admits what there is room for and runs one pass or several. False when nothing is left to do.
  bool step();

  // Destroys what is left of requests that have ended. For a caller that will not call step() soon.
  void release_ended();

  // Ends the request with kInterrupted and the ids it has so far; its blocks are free at once.
  // False where it has ended already.
  bool cancel(uint64_t id);

  // Ends every request with kInterrupted and the ids it has so far.
  void interrupt();

  size_t waiting() const { return waiting_.size(); }
  size_t active() const { return active_.size(); }
  const BlockPool& blocks() const { return pool_; }
  const SchedulerCounters& counters() const { return counters_; }

 private:
  struct Sequence;
  // Rows of one sequence in the next pass, one after the other.
  struct Part {
    Sequence* sequence;
    int rows;
    bool has_output;  // the last row gives an id
  };

  bool admit_first();
  int checked_positions(const SequenceRequest& request) const;
  void end_waiting(std::deque<std::unique_ptr<Sequence>>::iterator place, SequenceResult&& result);
  void start_first(BlockPool::Lease&& lease);
  void retire_ended();
  void work_beside_pass();
  void run_pass(const std::vector<Sequence*>& among);
  void run_alone(const std::vector<Part>& parts);
  bool run_decode_passes(const std::vector<Sequence*>& among);
  bool accept_step(const std::vector<Part>& parts, std::span<const int32_t> chosen);
  int steps_to_end(const Sequence& sequence) const;
  void gather(const std::vector<Sequence*>& among);
  int prompt_rows(const Sequence& sequence, int n_free) const;
  void add_rows(Sequence& sequence, std::span<const int32_t> ids);
  void forward();
  void gather_logprobs(Outputs& outputs);
  void gather_prompt_logits(Outputs& outputs);
  void gather_prompt_hidden(Outputs& outputs);
  void report_logprobs(const Sequence& sequence, size_t row, int32_t id) const;
  void report_prompt_logprobs() const;
  void report_prompt_hidden() const;
  void accept_results();
  void accept_choice(Sequence& sequence, int32_t id, int64_t now);
  void accept_id(Sequence& sequence, int32_t id, int64_t now);
  void end(Sequence& sequence, std::optional<SequenceResult::Failure> failure, FinishReason reason);
  void report(const SequenceRequest& request, SequenceResult&& result, int64_t submitted_at);

  Backend& backend_;
  const SchedulerOptions options_;
  BlockPool pool_;
  uint64_t last_id_ = 0;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::list<std::unique_ptr<Sequence>> active_;   // in the order of admission
  std::list<std::unique_ptr<Sequence>> retired_;  // have ended, and wait to be destroyed
  bool any_has_ended_ = false;                    // of active_
  std::vector<int> free_slots_;
  SchedulerCounters counters_;

  // The next pass.
  std::vector<Part> parts_;
  std::vector<int32_t> ids_, sequences_, positions_;  // [rows]
  std::vector<int32_t> output_rows_;         // first those that give an id, then those for logits
  std::vector<Sequence*> output_sequences_;  // [rows that give an id]
  std::vector<int32_t> chosen_;              // [rows that give an id]
  std::vector<LogprobSums> sums_;            // [rows that give an id], or empty: none is wanted
  std::vector<LogprobLogit> top_;            // [rows that give an id, most wanted]
  // A row whose logits say how probable the next id of its prompt was.
  struct PromptLogits {
    Sequence* sequence;
    int position;  // of the next id
  };
  std::vector<PromptLogits> prompt_logits_;
  std::vector<float> logits_;  // [prompt_logits_.size(), vocab]
  std::vector<float> normed_;  // [rows, dim], or empty: no prompt's hidden states are wanted
};

}  // namespace edgellm
