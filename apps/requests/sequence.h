// From a request to what the scheduler runs, and from its ids back to text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/requests/request.h"
#include "apps/session/leading_space.h"
#include "engine/scheduler.h"
#include "model/model_file.h"
#include "tokenizer/text_stream.h"

namespace edgellm {

// A token of the answer's end has neither text nor log-probabilities.
bool is_stop_id(const ModelFile& model, int32_t id);

// Answer number `choice`, from 0, to a prompt, without callbacks. Each has the seed behind that of
// the one before it.
SequenceRequest sequence_request(const AnswerRequest& wanted, std::vector<int32_t> prompt_ids,
                                 int choice, const ModelFile& model);

// The text of one answer as it comes: that of `edgellm run`.
class AnswerText {
 public:
  AnswerText(const Tokenizer& tokenizer, const AnswerRequest& wanted,
             std::span<const int32_t> prompt_ids);

  // One id that is no stop id; returns the text that became final.
  std::string push(int32_t id) { return shown(stream_.push(id)); }

  // A stop string was met: nothing more comes.
  bool stopped() const { return stream_.stopped(); }

  // No more ids: what was held back.
  std::string finish() { return shown(stream_.finish()); }

 private:
  std::string shown(const std::string& piece) {
    return leading_space_ ? leading_space_->dropped_from(piece) : piece;
  }

  TextStream stream_;
  std::optional<LeadingSpace> leading_space_;  // of a chat
};

}  // namespace edgellm
