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
  // Whether the marks of a sequence are still to be made. Those of one that takes the arg-max are
  // its bans alone, and read only in passes that go by rules: they can wait for one.
  bool lacks_marks(int32_t sequence) const {
    return entries_[static_cast<size_t>(sequence)].lacks_marks;
  }
  bool is_argmax(int32_t sequence) const {
    return entries_[static_cast<size_t>(sequence)].is_argmax;
  }
  // Makes the marks (kernels/choice.h) with which a sequence begins; marks [vocab]. `prompt`: as
  // the choice says.
  void make_marks(int32_t sequence, std::span<const int32_t> prompt, std::span<uint16_t> marks);

  // Where each of these sequences takes the arg-max of its logits, the ids that it bans, which are
  // the same for all; else nothing.
  std::optional<std::span<const int32_t>> argmax_bans(std::span<const int32_t> sequences) const;

 private:
  struct Entry {
    bool is_argmax = true;
    bool lacks_marks = false;
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
