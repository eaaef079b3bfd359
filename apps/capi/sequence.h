// What stands behind the two handles of edgellm.h: a model that runs on a device, and a sequence of
// ids in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/session/session.h"
#include "engine/backend.h"
#include "engine/sampling.h"
#include "model/model_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm::capi {

// A model on its device. Immutable except for the backend and the slots, which a mutex guards: any
// thread may use it.
class LoadedModel {
 public:
  // Opens, checks and uploads. Throws Error as the program does.
  LoadedModel(const std::string& path, const SessionOptions& options, int max_sequences);

  const ModelFile& file() const { return session_.model(); }
  // Throws Error (kUsage) where the file holds none.
  const Tokenizer& tokenizer() const;
  std::vector<int32_t> encode(std::string_view text, bool as_prompt) const;
  bool is_stop_id(int32_t id) const;
  int vocab() const { return session_.config().vocab; }
  int context() const { return session_.backend().info().context; }
  const std::string& device() const { return session_.backend().info().device; }
  const std::string& note() const { return note_; }

  // One of the places for a sequence; throws Error (kUsage) where all are taken.
  int take_slot();
  void give_slot_back(int slot);

  // Runs those of a sequence's `ids` that come after the first `n_cached`, one at least. `outputs`
  // are of the last id; its `rows` are set here. `n_cached` counts the ids whose pass is done, also
  // where a later one throws.
  void run(int slot, std::span<const int32_t> ids, size_t& n_cached, const Choice& choice,
           const Outputs& outputs);

 private:
  std::string note_;
  Session session_;
  const Tokenizer* tokenizer_;  // null where the file holds none
  std::mutex mutex_;            // of the back end and the slots
  std::vector<bool> slot_is_taken_;
};

class Sequence {
 public:
  explicit Sequence(std::shared_ptr<LoadedModel> model)
      : model_(std::move(model)), slot_(model_->take_slot()) {}
  ~Sequence() { model_->give_slot_back(slot_); }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const LoadedModel& model() const { return *model_; }
  // At any time, from any thread: before or after a call that is under way.
  size_t length() const { return n_ids_.load(std::memory_order_relaxed); }

  // Throws Error (kUsage, kPromptDoesNotFit) and leaves the sequence as it was.
  void feed(std::span<const int32_t> ids);
  void truncate(size_t n_ids);
  void set_sampling(const SamplingOptions& sampling, bool ban_stop_ids);

  // Of the last id. Throws Error (kUsage) where there is none.
  const std::vector<float>& logits();
  int32_t next_id();
  int32_t step();

  // Keeps a second call out while it lives.
  class Use {
   public:
    explicit Use(Sequence& sequence);  // throws Error (kUsage) where a call is under way
    ~Use() { sequence_.in_use_.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Sequence& sequence_;
  };

 private:
  std::span<const int32_t> banned() const;
  void run(const Outputs& outputs);
  // ids_ have changed: nothing is known of the last one yet.
  void note_new_ids();

  std::shared_ptr<LoadedModel> model_;
  int slot_;
  std::atomic<bool> in_use_{false};
  std::vector<int32_t> ids_;
  std::atomic<size_t> n_ids_{0};  // of ids_, for length()
  size_t n_cached_ = 0;           // of ids_, those whose keys and values the cache holds
  std::vector<float> logits_;     // after the last id; empty where not computed
  std::optional<int32_t> next_id_;
  SamplingOptions sampling_;
  bool ban_stop_ids_ = false;
};

}  // namespace edgellm::capi
