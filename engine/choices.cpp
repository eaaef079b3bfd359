#include "engine/choices.h"

#include <algorithm>

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
  require(std::ranges::all_of(choice.sampling.logit_bias, in_vocabulary, &LogitBias::id),
          "an id of a bias is outside the vocabulary");
  Entry& entry = entries_[static_cast<size_t>(sequence)];
  entry.is_argmax = choice.sampling.is_argmax();
  entry.banned.assign(choice.banned.begin(), choice.banned.end());
  entry.biases = choice.sampling.logit_bias;
  rules_[static_cast<size_t>(sequence)] = choice_rule(choice.sampling, !choice.banned.empty());
}

std::span<const LogitBias> Choices::biases(int sequence) const {
  return entries_[static_cast<size_t>(sequence)].biases;
}

void Choices::first_marks(int sequence, const Choice& choice, std::span<uint16_t> marks) const {
  std::ranges::fill(marks, uint16_t{0});
  const auto mark = [&](int32_t id, uint32_t as) {
    marks[static_cast<size_t>(id)] |= static_cast<uint16_t>(as);
  };
  for (const int32_t id : choice.prompt) mark(id, kMarkPrompt);
  for (const int32_t id : choice.banned) mark(id, kMarkBanned);
  for (const LogitBias& bias : biases(sequence)) mark(bias.id, kMarkBiased);
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
