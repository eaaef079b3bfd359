#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"

namespace edgellm {

struct Scheduler::Sequence {
  SequenceRequest request;
  BlockPool::Lease lease;
  int slot;
  int64_t submitted_at;
  int64_t admitted_at;
  bool has_begun = false;  // position is where its prompt begins to be computed, or later
  bool has_ended = false;
  int position = 0;           // ids in the cache
  int32_t next = -1;          // the id for `position`, once the prompt is computed
  std::vector<int32_t> seen;  // prompt and answer, where a penalty needs them
  int64_t last_id_at = 0;
  SequenceResult result;

  int prompt() const { return static_cast<int>(request.prompt_ids.size()); }
  bool decodes() const { return has_begun && position >= prompt(); }
  std::span<const int32_t> banned() const {
    return request.ignore_stop_ids ? request.stop_ids : std::span<const int32_t>();
  }
};

Scheduler::Scheduler(Backend& backend, const SchedulerOptions& options)
    : backend_(backend), options_(options), pool_(backend.info().kv_blocks) {
  require(backend.info().kv_blocks > 0, "a scheduler needs a paged KV cache");
  // One of the sequences at least is not decoding while a prompt waits for its rows.
  require(backend.info().max_rows >= backend.info().sequences,
          "a pass has no room for every sequence");
  require(options.prefill_rows >= 0, "a number of rows is not negative");
  for (int slot = backend.info().sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Scheduler::~Scheduler() = default;

void Scheduler::submit(SequenceRequest request) {
  waiting_.push_back({std::move(request), now_ns()});
}

bool Scheduler::step() {
  while (!waiting_.empty() && admit_first()) {
  }
  if (!active_.empty()) {
    std::vector<Sequence*> all;
    for (const auto& sequence : active_) all.push_back(sequence.get());
    if (!decode_run(all)) run(all);
    active_.remove_if([](const auto& sequence) { return sequence->has_ended; });
  }
  return !active_.empty() || !waiting_.empty();
}

void Scheduler::interrupt() {
  for (const auto& sequence : active_) end(*sequence, std::nullopt, FinishReason::kInterrupted);
  active_.clear();
  for (std::deque<Waiting> ended = std::exchange(waiting_, {}); Waiting & w : ended) {
    SequenceResult result;
    result.finish_reason = FinishReason::kInterrupted;
    result.queued_ns = now_ns() - w.submitted_at;
    finish(w.request, std::move(result), w.submitted_at);
  }
}

// ---- Admission ------------------------------------------------------------------------------

// Takes the oldest request out of the queue, unless it has to wait.
bool Scheduler::admit_first() {
  const SequenceRequest& first = waiting_.front().request;
  SequenceResult refused;
  bool is_refused = first.max_tokens == 0;
  int n_positions = 0;
  try {
    GenerateRequest view;
    view.prompt_ids = first.prompt_ids;
    view.sampling = first.sampling;
    check_request(backend_, view);
    // The last id is not fed, and none is for a place behind the context.
    n_positions = backend_.info().context - 1;
    const int prompt = static_cast<int>(first.prompt_ids.size());
    if (first.max_tokens >= 0 && first.max_tokens <= n_positions - prompt) {
      n_positions = prompt + std::max(first.max_tokens, 1) - 1;
    }
    if (BlockPool::blocks_for(n_positions) > pool_.total()) {
      throw Error(ExitCode::kPromptDoesNotFit, does_not_fit(first, n_positions));
    }
  } catch (const Error& error) {
    refused.failure = {error.code(), error.what()};
    is_refused = true;
  }
  if (is_refused) {
    const Waiting ended = std::move(waiting_.front());
    waiting_.pop_front();
    refused.queued_ns = now_ns() - ended.submitted_at;
    finish(ended.request, std::move(refused), ended.submitted_at);
    return true;
  }
  if (free_slots_.empty()) return false;
  std::optional<BlockPool::Lease> lease = pool_.allocate(first.prompt_ids, n_positions);
  if (!lease) return false;

  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(waiting_.front().request);
  sequence->submitted_at = waiting_.front().submitted_at;
  waiting_.pop_front();
  sequence->lease = std::move(*lease);
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  sequence->admitted_at = now_ns();
  sequence->result.queued_ns = sequence->admitted_at - sequence->submitted_at;
  if (sequence->request.sampling.repeat_penalty != 1) sequence->seen = sequence->request.prompt_ids;
  backend_.set_blocks(sequence->slot, sequence->lease.blocks);
  active_.push_back(std::move(sequence));
  return true;
}

std::string Scheduler::does_not_fit(const SequenceRequest& request, int n_positions) const {
  return "the prompt has " + std::to_string(request.prompt_ids.size()) +
         " tokens and with its answer can need " + std::to_string(n_positions) +
         " positions, but the KV cache of all sequences holds " +
         std::to_string(int64_t{pool_.total()} * kKvBlockPositions) +
         "; shorten the prompt, ask for fewer tokens, or give the cache more memory "
         "(--kv-memory)";
}

// ---- A pass ---------------------------------------------------------------------------------

// A pass for what these sequences need next. Where a value is not finite each of them gets a pass
// of its own: the cache is written with the same values again, and only those that are to blame
// fail.
void Scheduler::run(const std::vector<Sequence*>& among) {
  gather(among);
  try {
    forward();
  } catch (const NotFiniteError& error) {
    if (parts_.size() == 1) {
      end(*parts_[0].sequence, SequenceResult::Failure{error.code(), error.what()}, {});
      return;
    }
    run_alone(std::vector<Part>(parts_));
    return;
  }
  take_results();
}

void Scheduler::run_alone(const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    if (!part.sequence->has_ended) run({part.sequence});
  }
}

// Passes of greedy rows only, the next one begun before the ids of this one are looked at, until a
// sequence ends or the time is up. False where a single pass has to do.
bool Scheduler::decode_run(const std::vector<Sequence*>& among) {
  if (options_.run_ns <= 0) return false;
  int n_steps = std::numeric_limits<int>::max();
  for (const Sequence* sequence : among) {
    if (!sequence->decodes() || !sequence->request.sampling.is_argmax() ||
        !std::ranges::equal(sequence->banned(), among[0]->banned())) {
      return false;
    }
    n_steps = std::min(n_steps, steps_to_end(*sequence));
  }
  if (n_steps < 2) return false;
  gather(among);
  const std::vector<Part> parts = parts_;
  const int64_t begin = now_ns();
  int64_t waits_since = begin;
  bool goes_on = true;
  try {
    backend_.decode_rows({ids_, sequences_, positions_}, n_steps, among[0]->banned(),
                         [&](std::span<const int32_t> chosen) {
                           const int64_t now = now_ns();
                           counters_.pass_ns += now - waits_since;
                           ++counters_.passes;
                           ++counters_.decodes;
                           for (size_t i = 0; i < parts.size(); ++i) {
                             Sequence& sequence = *parts[i].sequence;
                             if (sequence.has_ended) continue;
                             ++counters_.decode_rows;
                             ++sequence.position;
                             take_choice(sequence, chosen[i]);
                             if (sequence.has_ended) goes_on = false;
                           }
                           if (now - begin >= options_.run_ns) goes_on = false;
                           waits_since = now_ns();
                           return goes_on;
                         });
  } catch (const NotFiniteError&) {
    run_alone(parts);
  }
  return true;
}

// Passes until the sequence ends, if nothing ends it before: places that it has not used, too.
int Scheduler::steps_to_end(const Sequence& sequence) const {
  const int places = backend_.info().context - 1 - sequence.position;
  if (sequence.request.max_tokens < 0) return places;
  return std::min(places,
                  sequence.request.max_tokens - static_cast<int>(sequence.result.token_ids.size()));
}

void Scheduler::add_rows(Sequence& sequence, std::span<const int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    ids_.push_back(ids[i]);
    sequences_.push_back(sequence.slot);
    positions_.push_back(sequence.position + static_cast<int>(i));
  }
  const int rows = static_cast<int>(ids.size());
  parts_.push_back({&sequence, rows, sequence.position + rows >= sequence.prompt()});
}

void Scheduler::gather(const std::vector<Sequence*>& among) {
  parts_.clear();
  ids_.clear();
  sequences_.clear();
  positions_.clear();
  for (Sequence* sequence : among) {
    if (sequence->decodes()) add_rows(*sequence, {&sequence->next, 1});
  }
  int room = backend_.info().max_rows - static_cast<int>(ids_.size());
  if (!ids_.empty() && options_.prefill_rows > 0) room = std::min(room, options_.prefill_rows);
  for (Sequence* sequence : among) {
    if (room == 0) break;
    if (sequence->decodes()) continue;
    if (!sequence->has_begun) {
      const std::optional<int> ready = pool_.ready_positions(sequence->lease);
      if (!ready) continue;
      sequence->has_begun = true;
      sequence->position = sequence->result.n_shared_prompt_ids = *ready;
      counters_.shared_prompt_ids += *ready;
    }
    const int rows = std::min(room, sequence->prompt() - sequence->position);
    add_rows(*sequence,
             std::span(sequence->request.prompt_ids)
                 .subspan(static_cast<size_t>(sequence->position), static_cast<size_t>(rows)));
    room -= rows;
  }
}

void Scheduler::forward() {
  // The backend chooses the greedy ids that have the same ids banned; the others, and samples, come
  // from logits.
  chosen_by_.clear();
  output_rows_.clear();
  banned_ = {};
  const auto is_backends = [&](const Sequence& sequence) {
    if (!sequence.request.sampling.is_argmax()) return false;
    if (output_rows_.empty()) banned_ = sequence.banned();
    return std::ranges::equal(sequence.banned(), banned_);
  };
  std::vector<std::pair<Sequence*, int32_t>> sampled;
  int32_t row = -1;
  for (const Part& part : parts_) {
    row += part.rows;
    if (!part.has_output) continue;
    if (is_backends(*part.sequence)) {
      chosen_by_.push_back(part.sequence);
      output_rows_.push_back(row);
    } else {
      sampled.emplace_back(part.sequence, row);
    }
  }
  argmax_.resize(output_rows_.size());
  for (const auto& [sequence, output_row] : sampled) {
    chosen_by_.push_back(sequence);
    output_rows_.push_back(output_row);
  }
  logits_.resize(sampled.size() * static_cast<size_t>(backend_.model().config().vocab));

  Outputs outputs;
  outputs.rows = output_rows_;
  outputs.banned = banned_;
  outputs.argmax = argmax_;
  outputs.logits = logits_;
  const int64_t start = now_ns();
  backend_.forward({ids_, sequences_, positions_}, outputs);
  counters_.pass_ns += now_ns() - start;
}

void Scheduler::take_results() {
  ++counters_.passes;
  const bool only_decodes =
      std::ranges::all_of(parts_, [](const Part& part) { return part.sequence->decodes(); });
  if (only_decodes) ++counters_.decodes;
  for (const Part& part : parts_) {
    Sequence& sequence = *part.sequence;
    if (sequence.decodes()) {
      ++counters_.decode_rows;
    } else {
      counters_.prompt_ids += part.rows;
      pool_.set_computed(sequence.lease, sequence.position + part.rows);
    }
    sequence.position += part.rows;
  }
  for (size_t i = 0; i < chosen_by_.size(); ++i) {
    Sequence& sequence = *chosen_by_[i];
    int32_t id = -1;
    try {
      id = choose(sequence, i);
    } catch (const Error& error) {
      end(sequence, SequenceResult::Failure{error.code(), error.what()}, {});
      continue;
    }
    take_choice(sequence, id);
  }
}

// The id for the sequence's position, by the result of output row `output`.
int32_t Scheduler::choose(const Sequence& sequence, size_t output) const {
  if (output < argmax_.size()) return argmax_[output];
  const size_t vocab = static_cast<size_t>(backend_.model().config().vocab);
  return choose_id(std::span(logits_).subspan((output - argmax_.size()) * vocab, vocab),
                   sequence.seen, sequence.banned(), sequence.request.sampling,
                   static_cast<uint64_t>(sequence.position));
}

// -1: there was none to choose.
void Scheduler::take_choice(Sequence& sequence, int32_t id) {
  if (id >= 0) {
    take_id(sequence, id);
    return;
  }
  const Error error = every_id_is_banned();
  end(sequence, SequenceResult::Failure{error.code(), error.what()}, {});
}

void Scheduler::take_id(Sequence& sequence, int32_t id) {
  SequenceResult& result = sequence.result;
  const int64_t now = now_ns();
  if (result.token_ids.empty()) {
    result.prefill_ns = now - sequence.admitted_at;
    result.ttft_ns = now - sequence.submitted_at;
  } else {
    result.inter_token_ns.push_back(now - sequence.last_id_at);
  }
  sequence.last_id_at = now;
  sequence.next = id;
  result.token_ids.push_back(id);
  if (sequence.request.sampling.repeat_penalty != 1) sequence.seen.push_back(id);
  ++counters_.output_ids;

  const SequenceRequest& request = sequence.request;
  const bool wants_more = !request.on_token || request.on_token(id);
  const EndRules rules{request.stop_ids, request.ignore_stop_ids, request.max_tokens,
                       backend_.info().context};
  const std::optional<FinishReason> reason =
      reason_to_end(rules, id, result.token_ids.size(), sequence.position, wants_more);
  if (reason) end(sequence, std::nullopt, *reason);
}

void Scheduler::end(Sequence& sequence, std::optional<SequenceResult::Failure> failure,
                    FinishReason reason) {
  sequence.has_ended = true;
  sequence.result.failure = std::move(failure);
  sequence.result.finish_reason = reason;
  backend_.set_blocks(sequence.slot, {});
  pool_.free(sequence.lease);
  free_slots_.push_back(sequence.slot);
  finish(sequence.request, std::move(sequence.result), sequence.submitted_at);
}

void Scheduler::finish(const SequenceRequest& request, SequenceResult&& result,
                       int64_t submitted_at) {
  result.total_ns = now_ns() - submitted_at;
  ++counters_.requests;
  if (result.failure) ++counters_.failures;
  if (request.on_end) request.on_end(std::move(result));
}

}  // namespace edgellm
