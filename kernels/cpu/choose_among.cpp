// choose_among: the choice of an id from few candidates, by the definition of ChooseArgs.
#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "kernels/choice.h"
#include "kernels/cpu/candidates.h"
#include "kernels/cpu/carver.h"
#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {
namespace {

struct Weighted {
  Candidate candidate;
  uint64_t weight;
};

struct Scratch {
  float* logits = nullptr;   // [n]
  float* powers = nullptr;   // [n]
  Weighted* kept = nullptr;  // [n]

  static Scratch take(Pool& pool, int thread, size_t n) {
    const auto place = [&](Carver carver, Scratch& scratch) {
      scratch.logits = carver.take<float>(n);
      scratch.powers = carver.take<float>(n);
      scratch.kept = carver.take<Weighted>(n);
      return carver.used();
    };
    Scratch scratch;
    const size_t bytes = place(Carver(), scratch);
    place(Carver(pool.thread_scratch(thread, bytes)), scratch);
    return scratch;
  }
};

// The candidates with adjusted logits, without those that are banned.
std::span<Candidate> adjust(const ChooseArgs& args, int sequence, std::span<Candidate> candidates) {
  const ChoiceRule& rule = args.rules[sequence];
  if (rule.marks == 0) return candidates;
  const uint16_t* marks =
      args.marks + static_cast<ptrdiff_t>(sequence) * static_cast<ptrdiff_t>(args.vocab);
  const LogitBias* biases = args.biases + static_cast<ptrdiff_t>(sequence) * kMaxBiases;
  size_t n = 0;
  for (const Candidate& candidate : candidates) {
    const uint32_t mark = marks[candidate.id];
    if ((mark & kMarkBanned) != 0) continue;
    candidates[n++] = {adjusted_logit(candidate.logit, mark, rule, biases, candidate.id),
                       candidate.id};
  }
  return candidates.first(n);
}

// What top-k leaves, in any order.
std::span<Candidate> filter_by_number(const ChoiceRule& rule, std::span<Candidate> candidates) {
  const auto most = static_cast<size_t>(rule.top_k);
  if (rule.top_k <= 0 || most >= candidates.size()) return candidates;
  std::nth_element(candidates.begin(), candidates.begin() + (rule.top_k - 1), candidates.end(),
                   is_larger);
  return candidates.first(most);
}

// What top-p and min-p leave of that, in any order.
std::span<Weighted> filter_by_weight(const ChoiceRule& rule, std::span<Weighted> kept) {
  if (rule.top_p > 0) {
    std::sort(kept.begin(), kept.end(), [](const Weighted& a, const Weighted& b) {
      return is_larger(a.candidate, b.candidate);
    });
    uint64_t total = 0;
    for (const Weighted& entry : kept) total += entry.weight;
    const uint64_t wanted = top_p_sum(total, rule.top_p);
    size_t n = 0;
    for (uint64_t sum = 0; sum < wanted && n < kept.size(); ++n) sum += kept[n].weight;
    kept = kept.first(n);
  }
  const auto end = std::partition(kept.begin(), kept.end(), [&](const Weighted& entry) {
    return entry.weight >= rule.min_weight;
  });
  return kept.first(static_cast<size_t>(end - kept.begin()));
}

int32_t draw(uint64_t seed, int position, std::span<Weighted> kept) {
  std::sort(kept.begin(), kept.end(),
            [](const Weighted& a, const Weighted& b) { return a.candidate.id < b.candidate.id; });
  uint64_t total = 0;
  for (const Weighted& entry : kept) total += entry.weight;
  const uint64_t drawn = share_of(total, random_bits(seed, static_cast<uint64_t>(position)));
  uint64_t sum = 0;
  for (const Weighted& entry : kept) {
    sum += entry.weight;
    if (sum > drawn) return entry.candidate.id;
  }
  throw ContractViolation("choose_among: no id was drawn");
}

}  // namespace

int32_t choose_among(const ChooseArgs& args, int row, std::span<Candidate> candidates, Pool& pool,
                     int thread) {
  const int32_t row_of_pass = args.row_list[row];
  const int32_t sequence = args.places.sequence[row_of_pass];
  const ChoiceRule& rule = args.rules[sequence];
  candidates = adjust(args, sequence, candidates);
  if (candidates.empty()) return -1;
  const Candidate first = *std::min_element(candidates.begin(), candidates.end(), is_larger);
  if (rule.samples == 0) return first.id;

  candidates = filter_by_number(rule, candidates);
  const size_t n = candidates.size();
  const Scratch scratch = Scratch::take(pool, thread, n);
  for (size_t i = 0; i < n; ++i) scratch.logits[i] = candidates[i].logit;
  pool.isa().powers(scratch.logits, first.logit, rule.inverse_temperature, static_cast<int>(n),
                    scratch.powers);
  for (size_t i = 0; i < n; ++i) {
    scratch.kept[i] = {candidates[i], weight_of(scratch.powers[i])};
  }
  return draw(rule.seed, args.places.position[row_of_pass] + 1,
              filter_by_weight(rule, {scratch.kept, n}));
}

}  // namespace edgellm::cpu
