// Choosing one id from one row of logits, with any back end's choose().
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling.h"
#include "kernels/choice.h"
#include "kernels/ref/ref.h"

namespace edgellm::test {

// A sequence that has had ids: those of its prompt, and those it has chosen, which come again as
// often as they were chosen.
struct HadIds {
  std::vector<int32_t> prompt;
  std::vector<int32_t> chosen;
  std::vector<int32_t> banned;
};

inline std::vector<uint16_t> marks_of(const HadIds& had, const SamplingOptions& options,
                                      size_t vocab) {
  std::vector<uint16_t> marks(vocab);
  const auto mark = [&](int32_t id) -> uint16_t& { return marks[static_cast<size_t>(id)]; };
  for (const int32_t id : had.prompt) mark(id) |= kMarkPrompt;
  for (const int32_t id : had.banned) mark(id) |= kMarkBanned;
  for (const LogitBias& bias : options.logit_bias) mark(bias.id) |= kMarkBiased;
  for (const int32_t id : had.chosen) mark(id) = static_cast<uint16_t>(counted(mark(id)));
  return marks;
}

inline int32_t choose_id(std::span<const float> logits, const HadIds& had,
                         const SamplingOptions& options, uint64_t position) {
  std::vector<uint16_t> marks = marks_of(had, options, logits.size());
  std::vector<LogitBias> biases = options.logit_bias;
  biases.resize(static_cast<size_t>(kMaxBiases));
  const ChoiceRule rule =
      choice_rule(options, !had.banned.empty() || !had.prompt.empty() || !had.chosen.empty());
  const int32_t zero = 0;
  const int32_t before = static_cast<int32_t>(position) - 1;
  int32_t id = -2;
  ref::choose({logits.data(),
               &zero,
               {&zero, &before},
               &rule,
               marks.data(),
               biases.data(),
               &id,
               1,
               static_cast<int>(logits.size())});
  return id;
}

}  // namespace edgellm::test
