// Random rows of logits and rules for the choice of ids, with what tests must not be kind to: ties,
// zeros of both signs, logits of one size and of many, values at the ends of the range, rules whose
// filters keep one id or all, marks of every kind.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/sampling.h"
#include "kernels/choice.h"
#include "tests/support/random.h"

namespace edgellm::test {

// Kinds of rows of logits.
inline constexpr int kLogitKinds = 6;
inline std::vector<float> random_logits(Random& random, size_t vocab, int kind) {
  std::vector<float> logits = random.normals(vocab, kind == 1 ? 8.0f : 2.0f);
  const float same = random.uniform(-3.0f, 3.0f);
  for (float& logit : logits) {
    if (kind == 2) logit = std::round(2 * logit) / 2;       // many ties
    if (kind == 3) logit = same;                            // all equal
    if (kind == 4) logit *= 0.01f;                          // all nearly equal
    if (kind == 5 && random.below(4) == 0) logit *= 1e30f;  // far apart
    if (kind == 5 && random.below(50) == 0) {
      logit = std::copysign(std::numeric_limits<float>::max(), logit);
    }
    if (random.below(10) == 0) logit = random.below(2) == 0 ? 0.0f : -0.0f;
  }
  return logits;
}

inline SamplingOptions random_options(Random& random, int vocab) {
  const auto pick = [&](const std::vector<double>& values) {
    return values[static_cast<size_t>(random.below(static_cast<int>(values.size())))];
  };
  SamplingOptions options;
  options.temperature = pick({0, 1e-300, 1e-6, 0.3, 0.7, 1, 1, 2.5, 1e9, 1e300});
  options.top_k = static_cast<int>(pick({0, 0, 0, 1, 2, 5, 40, 1000, 1e6}));
  options.top_p = pick({1, 1, 1e-25, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-9});
  options.min_p = pick({0, 0, 0, 1e-20, 0.01, 0.2, 0.9, 1});
  options.seed = random.bits();
  if (random.below(2) == 0) {
    options.repeat_penalty = pick({1, 1.1, 0.5, 0.01, 100});
    options.frequency_penalty = pick({0, 0.3, -0.5, 100});
    options.presence_penalty = pick({0, 0.7, -100});
  }
  if (random.below(3) == 0) {
    const int n = std::min(vocab, 1 + random.below(random.below(2) == 0 ? 4 : kMaxBiases));
    for (int i = 0; i < n; ++i) {
      // Ascending, spread over the vocabulary.
      const auto from = static_cast<int64_t>(i) * vocab / n;
      const auto to = static_cast<int64_t>(i + 1) * vocab / n;
      options.logit_bias.push_back(
          {static_cast<int32_t>(from + random.below(static_cast<int>(to - from))),
           random.uniform(-5.0f, 5.0f)});
    }
  }
  return options;
}

// Sequences with rules, marks and biases, and rows of a pass that belong to them.
struct ChooseData {
  std::vector<ChoiceRule> rules;
  std::vector<uint16_t> marks;
  std::vector<LogitBias> biases;
  std::vector<float> logits;
  std::vector<int32_t> row_list, sequences, positions;
  ChooseArgs args;  // but for ids and fault

  ChooseData(Random& random, int rows, int vocab) {
    const size_t width = static_cast<size_t>(vocab);
    const int n_sequences = rows + 3;
    marks.resize(static_cast<size_t>(n_sequences) * width);
    biases.resize(static_cast<size_t>(n_sequences) * static_cast<size_t>(kMaxBiases));
    for (int s = 0; s < n_sequences; ++s) add_sequence(random, s, vocab);
    // The pass has rows that give no id, and its sequences are in no order.
    for (int i = 0; i < n_sequences; ++i) {
      sequences.push_back(i);
      positions.push_back(random.below(5000));
    }
    for (int i = n_sequences - 1; i > 0; --i) {
      std::swap(sequences[static_cast<size_t>(i)],
                sequences[static_cast<size_t>(random.below(i + 1))]);
    }
    for (int row = 0; row < rows; ++row) {
      row_list.push_back(n_sequences - 1 - row);
      const std::vector<float> values = random_logits(random, width, random.below(kLogitKinds));
      logits.insert(logits.end(), values.begin(), values.end());
    }
    args.logits = logits.data();
    args.row_list = row_list.data();
    args.places = {sequences.data(), positions.data()};
    args.rules = rules.data();
    args.marks = marks.data();
    args.biases = biases.data();
    args.rows = rows;
    args.vocab = vocab;
  }

 private:
  void add_sequence(Random& random, int sequence, int vocab) {
    const size_t width = static_cast<size_t>(vocab);
    uint16_t* mark = marks.data() + static_cast<size_t>(sequence) * width;
    const SamplingOptions options = random_options(random, vocab);
    const bool bans = random.below(3) == 0;
    rules.push_back(choice_rule(options, bans));
    // A sequence that keeps no marks has some of an earlier one, which say nothing.
    if (rules.back().marks == 0) {
      for (size_t id = 0; id < width; ++id) mark[id] = static_cast<uint16_t>(random.bits());
      return;
    }
    for (int i = 0; i < 20; ++i) {
      mark[random.below(vocab)] |= kMarkPrompt;
      uint16_t& chosen = mark[random.below(vocab)];
      chosen = static_cast<uint16_t>(counted(chosen));
    }
    if (random.below(4) == 0) mark[random.below(vocab)] |= kMarkCount;
    const bool all = random.below(20) == 0;
    for (int id = 0; bans && id < vocab; ++id) {
      if (all || random.below(50) == 0) mark[id] |= kMarkBanned;
    }
    LogitBias* entry = biases.data() + static_cast<ptrdiff_t>(sequence) * kMaxBiases;
    for (const LogitBias& bias : options.logit_bias) {
      mark[bias.id] |= kMarkBiased;
      *entry++ = bias;
    }
  }
};

// Rows of logits for log-probabilities, with chosen ids and one row that has none.
struct LogprobData {
  static constexpr int kRows = 3;
  std::vector<float> logits;
  std::vector<int32_t> ids;

  LogprobData(Random& random, int vocab, int kind) {
    for (int row = 0; row < kRows; ++row) {
      const auto values = random_logits(random, static_cast<size_t>(vocab), kind);
      logits.insert(logits.end(), values.begin(), values.end());
    }
    ids = {random.below(vocab), -1, random.below(vocab)};
  }
};

inline bool are_equal(const std::vector<LogprobSums>& a, const std::vector<LogprobSums>& b) {
  return std::ranges::equal(a, b, [](const LogprobSums& x, const LogprobSums& y) {
    return x.sum == y.sum && x.largest == y.largest && x.chosen == y.chosen;
  });
}

// The ids of each row's top logits, in order.
inline std::vector<int32_t> in_order(std::vector<LogprobLogit> top, int n_top) {
  std::vector<int32_t> ids;
  for (auto row = top.begin(); row != top.end(); row += n_top) {
    std::sort(row, row + n_top, [](const LogprobLogit& a, const LogprobLogit& b) {
      return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
    });
    for (auto entry = row; entry != row + n_top; ++entry) ids.push_back(entry->id);
  }
  return ids;
}

}  // namespace edgellm::test
