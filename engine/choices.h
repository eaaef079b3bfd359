// How the ids of each sequence of a backend are chosen: the host's side, which all backends share.
#pragma once

#include <cstdint>
#include <functional>
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
  std::span<const LogitBias> biases(int32_t sequence) const {
    return entries_[static_cast<size_t>(sequence)].biases;
  }

  // Where each of these sequences takes the arg-max of its logits, the ids that it bans, which are
  // the same for all. Else nothing: their pass goes by rules. Only then are marks read, and
  // `make_marks` is called for each of the sequences whose marks are still to be made.
  using Bans = std::optional<std::span<const int32_t>>;
  Bans bans_or_rules(std::span<const int32_t> sequences,
                     const std::function<void(int32_t sequence)>& make_marks);

  // The marks (kernels/choice.h) with which a sequence begins; marks [vocab]. To be called once,
  // by make_marks.
  void make_marks(int32_t sequence, std::span<uint16_t> marks);

 private:
  struct Entry {
    bool is_argmax = true;
    bool lacks_marks = false;
    std::vector<int32_t> banned;
    std::vector<int32_t> prompt;  // where marks are still to be made
    std::vector<LogitBias> biases;

    bool is_plain() const { return is_argmax && banned.empty(); }
  };

  int vocab_;
  int n_not_plain_ = 0;  // entries
  std::vector<ChoiceRule> rules_;
  std::vector<Entry> entries_;
};

}  // namespace edgellm
