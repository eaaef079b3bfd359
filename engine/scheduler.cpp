#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace edgellm {
namespace {

// Bounds the logits that a pass gives for log-probabilities of prompts: with a vocabulary of 128256
// those of 256 rows would take 131 MB.
constexpr size_t kPromptLogitsBytes = size_t{32} << 20;

// Behind many rows a prompt is cut at a multiple of these positions: a GPU stores so many of a
// value as one word, and a few rows fewer do not matter.
constexpr int kCutPositions = 16;
constexpr int kManyRows = 256;

// The most ids for which a result has memory before they come: 6 KiB. Few answers are longer, and
// many end before max_tokens.
constexpr int kReservedIds = 512;

}  // namespace

int positions_for(const SequenceRequest& request, int context) {
  const int prompt = static_cast<int>(request.prompt_ids.size());
  if (request.max_tokens >= 0 && request.max_tokens <= context - 1 - prompt) {
    return prompt + std::max(request.max_tokens, 1) - 1;
  }
  return context - 1;
}

void SchedulerCounters::add(const SchedulerCounters& other) {
  prompt_ids += other.prompt_ids;
  shared_prompt_ids += other.shared_prompt_ids;
  decode_rows += other.decode_rows;
  output_ids += other.output_ids;
  passes += other.passes;
  decodes += other.decodes;
  pass_ns += other.pass_ns;
  requests += other.requests;
  failures += other.failures;
}

// A request, from submit() on.
struct Scheduler::Sequence {
  SequenceRequest request;
  uint64_t id = 0;
  int64_t submitted_at = 0;
  // From admission on.
  BlockPool::Lease lease = {};
  int slot = 0;
  int64_t admitted_at = 0;
  bool has_begun = false;  // position is behind the ids that it shares; until then it is 0
  bool has_ended = false;
  int position = 0;   // ids in the cache
  int32_t next = -1;  // the id for `position`, once the prompt is computed
  int64_t last_id_at = 0;
  SequenceResult result = {};

  int prompt() const { return static_cast<int>(request.prompt_ids.size()); }
  bool decodes() const { return has_begun && position >= prompt(); }
  // Somebody wants to see what is computed for the prompt, so all of it is.
  static bool watches_prompt(const SequenceRequest& request) {
    return request.on_prompt_logprobs || request.on_prompt_hidden;
  }
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
  require(options.max_batch_tokens >= 0, "a number of rows is not negative");
  for (int slot = backend.info().sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Scheduler::~Scheduler() = default;

uint64_t Scheduler::submit(SequenceRequest request) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  sequence->id = ++last_id_;
  const int64_t submitted_at = sequence->request.submitted_at;
  sequence->submitted_at = submitted_at != 0 ? submitted_at : now_ns();
  waiting_.push_back(std::move(sequence));
  return last_id_;
}

bool Scheduler::step() {
  while (!waiting_.empty() && admit_first()) {
  }
  if (!active_.empty()) {
    std::vector<Sequence*> all;
    all.reserve(active_.size());
    for (const auto& sequence : active_) all.push_back(sequence.get());
    if (!run_decode_passes(all)) run_pass(all);
    retire_ended();
  }
  return !active_.empty() || !waiting_.empty();
}

bool Scheduler::cancel(uint64_t id) {
  const auto id_of = [](const auto& sequence) { return sequence->id; };
  const auto waiting = std::ranges::find(waiting_, id, id_of);
  if (waiting != waiting_.end()) {
    SequenceResult result;
    result.finish_reason = FinishReason::kInterrupted;
    end_waiting(waiting, std::move(result));
    return true;
  }
  const auto active = std::ranges::find(active_, id, id_of);
  if (active == active_.end()) return false;
  end(**active, std::nullopt, FinishReason::kInterrupted);
  active_.erase(active);
  return true;
}

void Scheduler::interrupt() {
  std::vector<uint64_t> ids;
  for (const auto& sequence : active_) ids.push_back(sequence->id);
  for (const auto& sequence : waiting_) ids.push_back(sequence->id);
  for (const uint64_t id : ids) cancel(id);
}

// ---- Admission ------------------------------------------------------------------------------

// Takes the oldest request out of the queue: to run, or because it cannot run. False where it has
// to wait.
bool Scheduler::admit_first() {
  const SequenceRequest& first = waiting_.front()->request;
  int n_positions = 0;
  try {
    n_positions = checked_positions(first);
  } catch (const Error& error) {
    SequenceResult refused;
    refused.failure = {error.code(), error.what()};
    end_waiting(waiting_.begin(), std::move(refused));
    return true;
  }
  if (first.max_tokens == 0 && !Sequence::watches_prompt(first)) {
    end_waiting(waiting_.begin(), {});
    return true;
  }
  if (free_slots_.empty()) return false;
  // Of a shared block nobody computes the logits or the hidden states again.
  const std::span<const int32_t> shareable =
      Sequence::watches_prompt(first) ? std::span<const int32_t>() : first.prompt_ids;
  std::optional<BlockPool::Lease> lease = pool_.allocate(shareable, n_positions);
  if (!lease) return false;
  start_first(std::move(*lease));
  return true;
}

// positions_for(). Throws Error where the request cannot run.
int Scheduler::checked_positions(const SequenceRequest& request) const {
  GenerateRequest view;
  view.prompt_ids = request.prompt_ids;
  view.sampling = request.sampling;
  view.top_logprobs = request.top_logprobs;
  check_request(backend_, view);
  const int n_positions = positions_for(request, backend_.info().context);
  const int prompt = static_cast<int>(request.prompt_ids.size());
  if (BlockPool::blocks_for(n_positions) > pool_.total()) {
    throw Error(ExitCode::kPromptDoesNotFit,
                "the prompt has " + std::to_string(prompt) +
                    " tokens and with its answer can need " + std::to_string(n_positions) +
                    " positions, but the KV cache of all sequences holds " +
                    std::to_string(int64_t{pool_.total()} * kKvBlockPositions) +
                    "; shorten the prompt, ask for fewer tokens, or give the cache more memory "
                    "(--kv-memory)");
  }
  return n_positions;
}

// Ends a request that never ran.
void Scheduler::end_waiting(std::deque<std::unique_ptr<Sequence>>::iterator place,
                            SequenceResult&& result) {
  const std::unique_ptr<Sequence> ended = std::move(*place);
  waiting_.erase(place);
  result.queued_ns = now_ns() - ended->submitted_at;
  report(ended->request, std::move(result), ended->submitted_at);
}

// Makes the oldest request an active sequence.
void Scheduler::start_first(BlockPool::Lease&& lease) {
  std::unique_ptr<Sequence> sequence = std::move(waiting_.front());
  waiting_.pop_front();
  sequence->lease = std::move(lease);
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  sequence->admitted_at = now_ns();
  sequence->result.queued_ns = sequence->admitted_at - sequence->submitted_at;
  backend_.set_blocks(sequence->slot, sequence->lease.blocks);
  backend_.set_choice(sequence->slot, {.sampling = sequence->request.sampling,
                                       .banned = sequence->banned(),
                                       .prompt = sequence->request.prompt_ids});
  if (log_enabled(LogLevel::kTrace)) {
    log(LogLevel::kTrace, "admitted a request of " + std::to_string(sequence->prompt()) +
                              " ids to slot " + std::to_string(sequence->slot) + ": " +
                              std::to_string(sequence->lease.blocks.size()) + " KV blocks, " +
                              std::to_string(sequence->lease.n_shared) + " of them shared; " +
                              std::to_string(waiting_.size()) + " requests wait");
  }
  active_.push_back(std::move(sequence));
}

void Scheduler::release_ended() { retired_.clear(); }

// Sequences that have ended are destroyed beside the next pass, or behind it, not before it.
void Scheduler::retire_ended() {
  retired_.clear();
  if (!std::exchange(any_has_ended_, false)) return;
  for (auto place = active_.begin(); place != active_.end();) {
    const auto sequence = place++;
    if ((*sequence)->has_ended) retired_.splice(retired_.end(), active_, sequence);
  }
}

// Outputs::meanwhile.
void Scheduler::work_beside_pass() {
  retired_.clear();
  for (Sequence* sequence : output_sequences_) {
    SequenceResult& result = sequence->result;
    if (!result.token_ids.empty()) continue;
    const auto n_ids = static_cast<size_t>(std::clamp(steps_to_end(*sequence), 0, kReservedIds));
    result.token_ids.reserve(n_ids);
    result.inter_token_ns.reserve(n_ids);
  }
}

// ---- Running passes -------------------------------------------------------------------------

// Runs a pass for what these sequences need next. Where a value is not finite, each of the
// sequences gets a pass of its own: the pass writes the same values into the cache again, and only
// the sequences with the fault fail.
void Scheduler::run_pass(const std::vector<Sequence*>& among) {
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
  accept_results();
}

void Scheduler::run_alone(const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    if (!part.sequence->has_ended) run_pass({part.sequence});
  }
}

// Runs passes of decoding rows only, until a sequence ends or the time is up. A GPU begins the next
// pass before the host has seen the ids of this one. False where nothing was run, because a single
// pass has to do.
bool Scheduler::run_decode_passes(const std::vector<Sequence*>& among) {
  if (options_.run_ns <= 0) return false;
  int n_steps = std::numeric_limits<int>::max();
  for (const Sequence* sequence : among) {
    if (!sequence->decodes() || sequence->request.on_logprobs) return false;
    n_steps = std::min(n_steps, steps_to_end(*sequence));
  }
  if (n_steps < 2) return false;
  gather(among);
  const std::vector<Part> parts = parts_;
  const int64_t begin = now_ns();
  int64_t waits_since = begin;
  bool continues = true;
  const auto on_ids = [&](std::span<const int32_t> chosen) {
    const int64_t now = now_ns();
    counters_.pass_ns += now - waits_since;
    retired_.clear();
    if (!accept_step(parts, chosen)) continues = false;
    if (now - begin >= options_.run_ns) continues = false;
    if (options_.wants_control && options_.wants_control()) continues = false;
    waits_since = now_ns();
    return continues;
  };
  try {
    backend_.decode_rows({ids_, sequences_, positions_}, n_steps, on_ids);
  } catch (const NotFiniteError&) {
    run_alone(parts);
  }
  return true;
}

// Takes the ids of a decode step, one for each part; returns whether none of the sequences has
// ended with it. A sequence that had ended before gets nothing more.
bool Scheduler::accept_step(const std::vector<Part>& parts, std::span<const int32_t> chosen) {
  ++counters_.passes;
  ++counters_.decodes;
  const int64_t now = now_ns();
  bool continues = true;
  for (size_t i = 0; i < parts.size(); ++i) {
    Sequence& sequence = *parts[i].sequence;
    if (sequence.has_ended) continue;
    ++counters_.decode_rows;
    ++sequence.position;
    accept_choice(sequence, chosen[i], now);
    if (sequence.has_ended) continues = false;
  }
  return continues;
}

// The most passes until the sequence ends; all of them have positions in its blocks.
int Scheduler::steps_to_end(const Sequence& sequence) const {
  const int n_positions = backend_.info().context - 1 - sequence.position;
  if (sequence.request.max_tokens < 0) return n_positions;
  return std::min(n_positions,
                  sequence.request.max_tokens - static_cast<int>(sequence.result.token_ids.size()));
}

// ---- Making a pass --------------------------------------------------------------------------

void Scheduler::add_rows(Sequence& sequence, std::span<const int32_t> ids) {
  const int rows = static_cast<int>(ids.size());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  sequences_.insert(sequences_.end(), ids.size(), sequence.slot);
  for (int i = 0; i < rows; ++i) positions_.push_back(sequence.position + i);
  const bool is_whole = sequence.position + rows >= sequence.prompt();
  parts_.push_back({&sequence, rows, is_whole && sequence.request.max_tokens != 0});
}

// A row for every sequence that decodes, then ids of prompts in the rows that are left.
void Scheduler::gather(const std::vector<Sequence*>& among) {
  parts_.clear();
  ids_.clear();
  sequences_.clear();
  positions_.clear();
  for (Sequence* sequence : among) {
    if (sequence->decodes()) add_rows(*sequence, {&sequence->next, 1});
  }
  const int decoding = static_cast<int>(ids_.size());
  int n_free = backend_.info().max_rows - decoding;
  if (decoding > 0 && options_.max_batch_tokens > 0) {
    const int wanted = std::max(options_.max_batch_tokens - decoding, kMinPromptRows);
    n_free = std::min(n_free, wanted);
  }
  for (Sequence* sequence : among) {
    if (n_free == 0) break;
    if (sequence->decodes()) continue;
    if (!sequence->has_begun) {
      const std::optional<int> ready = pool_.ready_positions(sequence->lease);
      if (!ready) continue;
      sequence->has_begun = true;
      sequence->position = sequence->result.n_shared_prompt_ids = *ready;
      counters_.shared_prompt_ids += *ready;
    }
    const int rows = prompt_rows(*sequence, n_free);
    if (rows == 0) continue;
    add_rows(*sequence,
             std::span(sequence->request.prompt_ids)
                 .subspan(static_cast<size_t>(sequence->position), static_cast<size_t>(rows)));
    n_free -= rows;
  }
}

// How many of the prompt's rows the pass takes; those whose logits are wanted need room for them.
int Scheduler::prompt_rows(const Sequence& sequence, int n_free) const {
  const int left = sequence.prompt() - sequence.position;
  int rows = std::min(n_free, left);
  if (rows < left && static_cast<int>(ids_.size()) >= kManyRows) {
    const int end = (sequence.position + rows) / kCutPositions * kCutPositions;
    rows = std::max(0, end - sequence.position);
  }
  if (!sequence.request.on_prompt_logprobs) return rows;
  const auto row_bytes = sizeof(float) * static_cast<size_t>(backend_.model().config().vocab);
  const int most = static_cast<int>(std::max<size_t>(1, kPromptLogitsBytes / row_bytes));
  int taken = 0;
  for (const Part& part : parts_) {
    if (part.sequence->request.on_prompt_logprobs && !part.sequence->decodes()) taken += part.rows;
  }
  return std::min(rows, most - taken);
}

void Scheduler::forward() {
  output_sequences_.clear();
  output_rows_.clear();
  int32_t row = -1;
  for (const Part& part : parts_) {
    row += part.rows;
    if (!part.has_output) continue;
    output_sequences_.push_back(part.sequence);
    output_rows_.push_back(row);
  }
  chosen_.resize(output_rows_.size());
  Outputs outputs;
  outputs.ids = chosen_;
  gather_logprobs(outputs);
  gather_prompt_logits(outputs);
  gather_prompt_hidden(outputs);
  outputs.rows = output_rows_;
  outputs.meanwhile = [this] { work_beside_pass(); };
  const int64_t start = now_ns();
  backend_.forward({ids_, sequences_, positions_}, outputs);
  counters_.pass_ns += now_ns() - start;
}

// Room for the log-probabilities of all output rows, where one of them is to have any.
void Scheduler::gather_logprobs(Outputs& outputs) {
  bool any = false;
  int most = 0;
  for (const Sequence* sequence : output_sequences_) {
    if (!sequence->request.on_logprobs) continue;
    any = true;
    most = std::max(most, sequence->request.top_logprobs);
  }
  sums_.resize(any ? output_sequences_.size() : 0);
  top_.resize(sums_.size() * static_cast<size_t>(most));
  outputs.logprobs = sums_;
  outputs.top = top_;
}

// The rows of prompts whose logits are wanted stand behind those that give an id.
void Scheduler::gather_prompt_logits(Outputs& outputs) {
  prompt_logits_.clear();
  int32_t row = 0;
  for (const Part& part : parts_) {
    Sequence& sequence = *part.sequence;
    if (sequence.request.on_prompt_logprobs && !sequence.decodes()) {
      // The last row's logits are about the answer.
      const bool is_whole = sequence.position + part.rows >= sequence.prompt();
      const int n = part.rows - (is_whole ? 1 : 0);
      for (int i = 0; i < n; ++i) {
        output_rows_.push_back(row + i);
        prompt_logits_.push_back({&sequence, sequence.position + i + 1});
      }
    }
    row += part.rows;
  }
  logits_.resize(prompt_logits_.size() * static_cast<size_t>(backend_.model().config().vocab));
  outputs.logits = logits_;
}

void Scheduler::gather_prompt_hidden(Outputs& outputs) {
  const bool any = std::ranges::any_of(parts_, [](const Part& part) {
    return part.sequence->request.on_prompt_hidden && !part.sequence->decodes();
  });
  normed_.resize(any ? ids_.size() * static_cast<size_t>(backend_.model().config().dim) : 0);
  outputs.normed = normed_;
}

// Before the positions move on.
void Scheduler::report_prompt_hidden() const {
  if (normed_.empty()) return;
  const auto dim = static_cast<size_t>(backend_.model().config().dim);
  size_t row = 0;
  for (const Part& part : parts_) {
    const Sequence& sequence = *part.sequence;
    const bool is_wanted = sequence.request.on_prompt_hidden && !sequence.decodes();
    for (int i = 0; i < part.rows; ++i, ++row) {
      if (!is_wanted) continue;
      sequence.request.on_prompt_hidden(sequence.position + i,
                                        std::span(normed_).subspan(row * dim, dim));
    }
  }
}

void Scheduler::report_prompt_logprobs() const {
  const auto vocab = static_cast<size_t>(backend_.model().config().vocab);
  for (size_t i = 0; i < prompt_logits_.size(); ++i) {
    const auto& [sequence, position] = prompt_logits_[i];
    const int32_t id = sequence->request.prompt_ids[static_cast<size_t>(position)];
    sequence->request.on_prompt_logprobs(
        position, token_logprobs(std::span(logits_).subspan(i * vocab, vocab), id,
                                 sequence->request.top_logprobs));
  }
}

void Scheduler::report_logprobs(const Sequence& sequence, size_t row, int32_t id) const {
  const size_t n_top = top_.size() / sums_.size();
  // The op gives as many as the neediest request wants, in no order.
  TokenLogprobs logprobs = token_logprobs(sums_[row], std::span(top_).subspan(row * n_top, n_top));
  logprobs.top.resize(static_cast<size_t>(sequence.request.top_logprobs));
  sequence.request.on_logprobs(id, logprobs);
}

// ---- The results of a pass ------------------------------------------------------------------

void Scheduler::accept_results() {
  const int64_t now = now_ns();
  ++counters_.passes;
  const bool only_decodes =
      std::ranges::all_of(parts_, [](const Part& part) { return part.sequence->decodes(); });
  if (only_decodes) ++counters_.decodes;
  report_prompt_hidden();
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
  report_prompt_logprobs();
  for (size_t i = 0; i < output_sequences_.size(); ++i) {
    const Sequence& sequence = *output_sequences_[i];
    if (sequence.request.on_logprobs && chosen_[i] >= 0) report_logprobs(sequence, i, chosen_[i]);
    accept_choice(*output_sequences_[i], chosen_[i], now);
  }
  for (const Part& part : parts_) {
    Sequence& sequence = *part.sequence;
    if (sequence.request.max_tokens == 0 && sequence.decodes()) {
      sequence.result.prefill_ns = now - sequence.admitted_at;
      end(sequence, std::nullopt, FinishReason::kLength);
    }
  }
}

// An `id` of -1 says that every id is banned. All ids of a pass have come at the same time: `now`.
void Scheduler::accept_choice(Sequence& sequence, int32_t id, int64_t now) {
  if (id >= 0) {
    accept_id(sequence, id, now);
    return;
  }
  const Error error = every_id_is_banned();
  end(sequence, SequenceResult::Failure{error.code(), error.what()}, {});
}

void Scheduler::accept_id(Sequence& sequence, int32_t id, int64_t now) {
  SequenceResult& result = sequence.result;
  if (result.token_ids.empty()) {
    result.prefill_ns = now - sequence.admitted_at;
    result.ttft_ns = now - sequence.submitted_at;
  } else {
    result.inter_token_ns.push_back(now - sequence.last_id_at);
  }
  sequence.last_id_at = now;
  sequence.next = id;
  result.token_ids.push_back(id);
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
  sequence.has_ended = any_has_ended_ = true;
  sequence.result.failure = std::move(failure);
  sequence.result.finish_reason = reason;
  backend_.set_blocks(sequence.slot, {});
  pool_.free(sequence.lease);
  free_slots_.push_back(sequence.slot);
  report(sequence.request, std::move(sequence.result), sequence.submitted_at);
}

void Scheduler::report(const SequenceRequest& request, SequenceResult&& result,
                       int64_t submitted_at) {
  result.total_ns = now_ns() - submitted_at;
  ++counters_.requests;
  if (result.failure) ++counters_.failures;
  if (request.on_end) request.on_end(std::move(result));
}

}  // namespace edgellm
