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
  entry.is_argmax = choice.sampling.is_argmax();
  entry.banned.assign(choice.banned.begin(), choice.banned.end());
  entry.biases = choice.sampling.logit_bias;
  ChoiceRule& rule = rules_[static_cast<size_t>(sequence)];
  rule = choice_rule(choice.sampling, !choice.banned.empty());
  entry.lacks_marks = rule.marks != 0;
}

std::span<const LogitBias> Choices::biases(int sequence) const {
  return entries_[static_cast<size_t>(sequence)].biases;
}

void Choices::make_marks(int32_t sequence, std::span<const int32_t> prompt,
                         std::span<uint16_t> marks) {
  std::ranges::fill(marks, uint16_t{0});
  const auto mark = [&](int32_t id, uint32_t as) {
    marks[static_cast<size_t>(id)] |= static_cast<uint16_t>(as);
  };
  for (const int32_t id : prompt) mark(id, kMarkPrompt);
  for (const int32_t id : banned(sequence)) mark(id, kMarkBanned);
  for (const LogitBias& bias : biases(sequence)) mark(bias.id, kMarkBiased);
  entries_[static_cast<size_t>(sequence)].lacks_marks = false;
}

std::optional<std::span<const int32_t>> Choices::argmax_bans(
    std::span<const int32_t> sequences) const {
  if (sequences.empty()) return std::span<const int32_t>();
  const std::span<const int32_t> first = banned(sequences[0]);
  const auto is_alike = [&](int32_t sequence) {
    return entries_[static_cast<size_t>(sequence)].is_argmax &&
           std::ranges::equal(banned(sequence), first);
  };
  if (!std::ranges::all_of(sequences, is_alike)) return std::nullopt;
  return first;
}

}  // namespace edgellm
