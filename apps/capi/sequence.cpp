#include "apps/capi/sequence.h"

#include <algorithm>

#include "apps/session/prompt.h"
#include "base/error.h"
#include "base/number_format.h"
#include "engine/prefill.h"

namespace edgellm::capi {

namespace {

// A file that cannot be read is reported before a device that cannot be used. A library converts
// nothing behind its caller's back.
Session open_session(const std::string& path, const SessionOptions& options, const Note& note) {
  auto model = std::make_shared<const ModelFile>(open_model({.name = path, .no_cache = true}));
  Device device = choose_device(options.device, note);
  return Session(std::move(model), options, std::vector{std::move(device)},
                 {.note = note, .with_progress = [](const auto& work) { work(Progress()); }});
}

}  // namespace

LoadedModel::LoadedModel(const std::string& path, const SessionOptions& options, int max_sequences)
    : session_(open_session(path, options, [this](std::string_view message) { note_ = message; })),
      tokenizer_(session_.tokenizer()) {
  EngineOptions engine = session_.engine_options();
  engine.sequences = max_sequences;
  session_.start(engine);
  slot_is_taken_.resize(static_cast<size_t>(max_sequences));
}

const Tokenizer& LoadedModel::tokenizer() const {
  if (tokenizer_ == nullptr) {
    throw Error(ExitCode::kUsage,
                file().path() + " has no tokenizer, so it takes and gives no text; use ids");
  }
  return *tokenizer_;
}

std::vector<int32_t> LoadedModel::encode(std::string_view text, bool as_prompt) const {
  return as_prompt ? encode_prompt(tokenizer(), file().tokenizer(), text)
                   : tokenizer().encode(text, /*add_special=*/false);
}

bool LoadedModel::is_stop_id(int32_t id) const {
  const std::vector<int32_t>& stop_ids = file().tokenizer().stop_ids;
  return std::binary_search(stop_ids.begin(), stop_ids.end(), id);
}

int LoadedModel::take_slot() {
  const std::lock_guard lock(mutex_);
  const auto free = std::find(slot_is_taken_.begin(), slot_is_taken_.end(), false);
  if (free == slot_is_taken_.end()) {
    throw Error(ExitCode::kUsage,
                "the model was opened for " + counted(std::ssize(slot_is_taken_), "sequence") +
                    " and has as many; free one, or open it with more max_sequences");
  }
  *free = true;
  return static_cast<int>(free - slot_is_taken_.begin());
}

void LoadedModel::give_slot_back(int slot) {
  const std::lock_guard lock(mutex_);
  slot_is_taken_[static_cast<size_t>(slot)] = false;
}

void LoadedModel::run(int slot, std::span<const int32_t> ids, size_t& n_cached,
                      const Choice& choice, const Outputs& outputs) {
  const std::lock_guard lock(mutex_);
  session_.backend().set_choice(slot, choice);
  const size_t first = n_cached;
  Prefill prefill(session_.backend(), slot, static_cast<int>(first), ids.subspan(first));
  while (!prefill.is_done()) {
    prefill.run_pass_for_last_id(outputs);
    n_cached = first + prefill.n_fed();
  }
}

void Sequence::feed(std::span<const int32_t> ids) {
  const int vocab = model_->vocab();
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      throw Error(ExitCode::kUsage,
                  "token id " + std::to_string(id) + " is outside the model's vocabulary of " +
                      std::to_string(vocab) + " (ids from 0 to " + std::to_string(vocab - 1) + ")");
    }
  }
  const auto context = static_cast<size_t>(model_->context());
  if (ids.size() > context - ids_.size()) {
    throw Error(ExitCode::kPromptDoesNotFit,
                "the sequence has " + std::to_string(ids_.size()) + " ids and " +
                    std::to_string(ids.size()) + " more do not fit the context of " +
                    std::to_string(context) +
                    "; truncate it, or open the model with a larger context (at most " +
                    std::to_string(model_->file().config().max_context) + ")");
  }
  if (ids.empty()) return;
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  note_new_ids();
}

void Sequence::truncate(size_t n_ids) {
  if (n_ids > ids_.size()) {
    throw Error(ExitCode::kUsage, "the sequence has " + std::to_string(ids_.size()) +
                                      " ids and cannot be cut to " + std::to_string(n_ids));
  }
  if (n_ids == ids_.size()) return;
  ids_.resize(n_ids);
  n_cached_ = std::min(n_cached_, n_ids);
  note_new_ids();
}

void Sequence::set_sampling(const SamplingOptions& sampling, bool ban_stop_ids) {
  const std::string problem = sampling_problem(sampling);
  if (!problem.empty()) throw Error(ExitCode::kUsage, problem);
  sampling_ = sampling;
  ban_stop_ids_ = ban_stop_ids;
  next_id_.reset();
}

const std::vector<float>& Sequence::logits() {
  if (!logits_.empty()) return logits_;
  std::vector<float> logits(static_cast<size_t>(model_->vocab()));
  int32_t id = -1;
  Outputs outputs;
  outputs.logits = logits;
  outputs.ids = {&id, 1};
  run(outputs);
  logits_ = std::move(logits);
  if (id >= 0) next_id_ = id;
  return logits_;
}

int32_t Sequence::next_id() {
  if (next_id_) return *next_id_;
  int32_t id = -1;
  Outputs outputs;
  outputs.ids = {&id, 1};
  run(outputs);
  if (id < 0) {
    throw Error(ExitCode::kUsage,
                "every id of the vocabulary ends an answer, and ban_stop_ids bans them all");
  }
  next_id_ = id;
  return id;
}

int32_t Sequence::step() {
  const int32_t id = next_id();
  feed({&id, 1});
  return id;
}

std::span<const int32_t> Sequence::banned() const {
  if (!ban_stop_ids_) return {};
  return model_->file().tokenizer().stop_ids;
}

void Sequence::run(const Outputs& outputs) {
  if (ids_.empty()) {
    throw Error(ExitCode::kUsage, "the sequence is empty; feed it at least one id");
  }
  // The last id runs again where another result of it is wanted: it finds what it has written.
  n_cached_ = std::min(n_cached_, ids_.size() - 1);
  // The whole sequence counts as the prompt. Penalties that count the answer would need its ids.
  model_->run(slot_, ids_, n_cached_, {.sampling = sampling_, .banned = banned(), .prompt = ids_},
              outputs);
}

void Sequence::note_new_ids() {
  n_ids_.store(ids_.size(), std::memory_order_relaxed);
  logits_.clear();
  next_id_.reset();
}

Sequence::Use::Use(Sequence& sequence) : sequence_(sequence) {
  if (sequence.in_use_.exchange(true, std::memory_order_acquire)) {
    throw Error(ExitCode::kUsage, "the sequence is in use by another thread; one call at a time");
  }
}

}  // namespace edgellm::capi
