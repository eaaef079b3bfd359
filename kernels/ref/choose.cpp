// Choosing ids, with sorted lists.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "kernels/choice.h"
#include "kernels/ref/ref.h"

namespace edgellm::ref {
namespace {

struct Candidate {
  int32_t id;
  float logit;  // adjusted
  uint64_t weight;
};

bool is_larger(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

uint64_t total(const std::vector<Candidate>& candidates) {
  uint64_t sum = 0;
  for (const Candidate& c : candidates) sum += c.weight;
  return sum;
}

// `candidates` are in falling order of logits.
int32_t sample(std::vector<Candidate> candidates, const ChoiceRule& rule, int position) {
  const float largest = candidates[0].logit;
  for (Candidate& c : candidates) {
    c.weight = logit_weight(c.logit, largest, rule.inverse_temperature);
  }
  const size_t k = static_cast<size_t>(rule.top_k);
  if (k > 0 && k < candidates.size()) candidates.resize(k);
  if (rule.top_p > 0) {
    const uint64_t wanted = top_p_sum(total(candidates), rule.top_p);
    uint64_t sum = 0;
    size_t n = 0;
    while (sum < wanted) sum += candidates[n++].weight;
    candidates.resize(n);
  }
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < rule.min_weight; });

  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const uint64_t drawn =
      share_of(total(candidates), random_bits(rule.seed, static_cast<uint64_t>(position)));
  uint64_t sum = 0;
  size_t n = 0;
  while (sum <= drawn) sum += candidates[n++].weight;
  return candidates[n - 1].id;
}

}  // namespace

void choose(const ChooseArgs& args) {
  const size_t vocab = static_cast<size_t>(args.vocab);
  for (int row = 0; row < args.rows; ++row) {
    const float* logits = args.logits + static_cast<size_t>(row) * vocab;
    const int32_t sequence = args.places.sequence[args.row_list[row]];
    const int position = args.places.position[args.row_list[row]] + 1;
    const ChoiceRule& rule = args.rules[sequence];
    const bool has_marks = rule.marks != 0;
    const uint16_t* marks =
        has_marks ? args.marks + static_cast<size_t>(sequence) * vocab : nullptr;
    const LogitBias* biases =
        has_marks ? args.biases + static_cast<ptrdiff_t>(sequence) * kMaxBiases : nullptr;

    std::vector<Candidate> candidates;
    for (int id = 0; id < args.vocab; ++id) {
      const uint32_t mark = has_marks ? marks[id] : 0;
      const float logit = adjusted_logit(logits[id], mark, rule, biases, id);
      if (logit != -INFINITY) candidates.push_back({id, logit, 0});
    }
    std::sort(candidates.begin(), candidates.end(), is_larger);
    int32_t id = -1;
    if (!candidates.empty()) {
      id = rule.samples != 0 ? sample(candidates, rule, position) : candidates[0].id;
    }
    args.ids[row] = id;
  }
}

void logprobs(const LogprobArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    const float* logits = args.logits + static_cast<size_t>(row) * static_cast<size_t>(args.vocab);
    std::vector<int32_t> order(static_cast<size_t>(args.vocab));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    const float largest = logits[order[0]];
    LogprobSums& sums = args.sums[row];
    sums = {0, largest, args.ids[row] < 0 ? 0.0f : logits[args.ids[row]]};
    for (const int32_t id : order) sums.sum += logit_weight(logits[id], largest, 1.0f);
    for (int i = 0; i < args.n_top; ++i) {
      const int32_t id = order[static_cast<size_t>(i)];
      args.top[static_cast<size_t>(row) * static_cast<size_t>(args.n_top) +
               static_cast<size_t>(i)] = {id, logits[id]};
    }
  }
}

}  // namespace edgellm::ref
