// A request while the engine answers it: what its connection's thread and the engine's thread tell
// each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apps/requests/openai_answer.h"
#include "apps/requests/request.h"
#include "apps/serve/embedding.h"
#include "apps/serve/event.h"
#include "engine/scheduler.h"

namespace edgellm::serve {

// What came of one of the answers since the last piece.
struct Piece {
  size_t choice = 0;
  std::string text = {};
  std::vector<int32_t> ids = {};                 // a stop id as well
  std::vector<IdLogprobs> logprobs = {};         // a stop id has none
  std::vector<IdLogprobs> prompt_logprobs = {};  // with `echo`, without the prompt's first id
  std::vector<float> embedding = {};             // where it is what was asked for, with `end`
  std::optional<SequenceResult> end = {};        // the answer has ended
};

class LiveRequest {
 public:
  // `is_streamed`: pieces are wanted as they come, not only when all answers have ended or one has
  // failed. Throws Error (kRuntime) where the process has no descriptor left.
  LiveRequest(AnswerRequest wanted, std::vector<std::vector<int32_t>> prompts, bool is_streamed);

  // The embeddings of prompts: an answer to each, which is no text.
  LiveRequest(std::vector<std::vector<int32_t>> prompts, Pooling pooling);

  const AnswerRequest& wanted() const { return wanted_; }
  std::optional<Pooling> pooling() const { return pooling_; }  // of embeddings
  const std::vector<std::vector<int32_t>>& prompts() const { return prompts_; }
  // Answers: wanted().n to each prompt, in the order of the prompts.
  size_t n_choices() const { return prompts_.size() * static_cast<size_t>(wanted_.n); }
  const std::vector<int32_t>& prompt_of(size_t choice) const {
    return prompts_[choice / static_cast<size_t>(wanted_.n)];
  }

  // Set when there are pieces to take; perhaps also when another call has taken them.
  const std::shared_ptr<const Event>& event() const { return event_; }

  // What has come since the last call, a piece for each answer at most.
  std::vector<Piece> take();

  // Of the engine's thread. Joins the piece to the one of that choice which was not taken yet. True
  // where event() is to be set.
  [[nodiscard]] bool push(Piece piece);

 private:
  LiveRequest(AnswerRequest wanted, std::vector<std::vector<int32_t>> prompts,
              std::optional<Pooling> pooling, bool is_streamed);

  const AnswerRequest wanted_;
  const std::vector<std::vector<int32_t>> prompts_;
  const std::optional<Pooling> pooling_;
  const bool is_streamed_;
  const std::shared_ptr<const Event> event_ = std::make_shared<const Event>();
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Piece> pieces_;
  size_t n_ended_ = 0;
  bool is_signalled_ = false;  // event() is set, or is about to be
};

}  // namespace edgellm::serve
