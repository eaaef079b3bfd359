// How the ids of each sequence of a backend are chosen: the host's side, which all backends share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/backend.h"

namespace edgellm {

class Choices {
 public:
  // Sequences begin greedy. One more than those of the options, the padding sequence (CacheLayout),
  // stays so.
  Choices(const ModelConfig& config, const EngineOptions& options);

  // Backend::set_choice().
  void set(int sequence, const Choice& choice);

  const std::vector<ChoiceRule>& rules() const { return rules_; }  // [sequences + 1]
  std::span<const LogitBias> biases(int sequence) const;
  // The marks (kernels/choice.h) with which a sequence begins, as `choice` said; marks [vocab].
  void first_marks(int sequence, const Choice& choice, std::span<uint16_t> marks) const;

  // Where each of these sequences takes the arg-max of its logits, the ids that it bans, which are
  // the same for all; else nothing.
  std::optional<std::span<const int32_t>> argmax_bans(std::span<const int32_t> sequences) const;

 private:
  struct Entry {
    bool is_argmax = true;
    std::vector<int32_t> banned;
    std::vector<LogitBias> biases;
  };

  std::span<const int32_t> banned(int32_t sequence) const {
    return entries_[static_cast<size_t>(sequence)].banned;
  }

  int vocab_;
  std::vector<ChoiceRule> rules_;
  std::vector<Entry> entries_;
};

}  // namespace edgellm
