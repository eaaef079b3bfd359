#include "engine/choices.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "kernels/choice.h"

namespace edgellm {

Choices::Choices(const ModelConfig& config, const EngineOptions& options)
    : vocab_(config.vocab),
      rules_(static_cast<size_t>(options.sequences) + 1),
      entries_(static_cast<size_t>(options.sequences) + 1) {}

void Choices::set(int sequence, const Choice& choice) {
  require(sequence >= 0 && static_cast<size_t>(sequence) + 1 < entries_.size(),
          "a sequence slot is outside the cache");
  require(sampling_problem(choice.sampling).empty(), "a sampling option is out of its range");
  const auto in_vocabulary = [this](int32_t id) { return id >= 0 && id < vocab_; };
  require(std::ranges::all_of(choice.banned, in_vocabulary),
          "a banned id is outside the vocabulary");
  require(std::ranges::all_of(choice.prompt, in_vocabulary),
          "an id of the prompt is outside the vocabulary");
  const std::vector<LogitBias>& biases = choice.sampling.logit_bias;
  require(std::ranges::all_of(biases, in_vocabulary, &LogitBias::id),
          "an id of a bias is outside the vocabulary");
  require(std::ranges::adjacent_find(biases, std::ranges::greater_equal{}, &LogitBias::id) ==
              biases.end(),
          "the ids of biases are not in ascending order");
  Entry& entry = entries_[static_cast<size_t>(sequence)];
  n_not_plain_ -= entry.is_plain() ? 0 : 1;
  entry.is_argmax = choice.sampling.is_argmax();
  entry.banned.assign(choice.banned.begin(), choice.banned.end());
  n_not_plain_ += entry.is_plain() ? 0 : 1;
  entry.biases = choice.sampling.logit_bias;
  ChoiceRule& rule = rules_[static_cast<size_t>(sequence)];
  rule = choice_rule(choice.sampling, !choice.banned.empty());
  entry.lacks_marks = rule.marks != 0;
  entry.prompt.clear();
  if (choice.sampling.has_penalty())
    entry.prompt.assign(choice.prompt.begin(), choice.prompt.end());
}

Choices::Bans Choices::bans_or_rules(std::span<const int32_t> sequences,
                                     const std::function<void(int32_t sequence)>& make_marks) {
  const auto entry = [this](int32_t sequence) -> const Entry& {
    return entries_[static_cast<size_t>(sequence)];
  };
  if (sequences.empty() || n_not_plain_ == 0) return std::span<const int32_t>();
  const std::vector<int32_t>& banned = entry(sequences[0]).banned;
  const auto is_alike = [&](int32_t sequence) {
    return entry(sequence).is_argmax && entry(sequence).banned == banned;
  };
  if (std::ranges::all_of(sequences, is_alike)) return banned;
  std::vector<bool> gives_id(entries_.size());
  for (const int32_t sequence : sequences) {
    require(!gives_id[static_cast<size_t>(sequence)], "a sequence gives two ids in a pass");
    gives_id[static_cast<size_t>(sequence)] = true;
  }
  for (const int32_t sequence : sequences) {
    if (entry(sequence).lacks_marks) make_marks(sequence);
  }
  return std::nullopt;
}

void Choices::make_marks(int32_t sequence, std::span<uint16_t> marks) {
  Entry& entry = entries_[static_cast<size_t>(sequence)];
  std::ranges::fill(marks, uint16_t{0});
  const auto mark = [&](int32_t id, uint32_t as) {
    marks[static_cast<size_t>(id)] |= static_cast<uint16_t>(as);
  };
  for (const int32_t id : entry.prompt) mark(id, kMarkPrompt);
  for (const int32_t id : entry.banned) mark(id, kMarkBanned);
  for (const LogitBias& bias : entry.biases) mark(bias.id, kMarkBiased);
  entry.lacks_marks = false;
  entry.prompt = {};
}

}  // namespace edgellm
