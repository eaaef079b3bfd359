#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>

#include "base/error.h"
#include "kernels/canonical.h"

namespace edgellm {
namespace {

struct Candidate {
  double logit;  // after the penalty
  int32_t id;
  float weight;  // exp((logit - largest) / temperature)
};

// The order of top_k and top_p: no two candidates are equal in it.
bool is_larger(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// A heap by is_larger() gives out the largest first.
bool is_smaller(const Candidate& a, const Candidate& b) { return is_larger(b, a); }

// Those that a filter drops are erased in place: candidates stay in ascending order of ids, so that
// the order of a sum never depends on how a filter was computed.
void keep_down_to(std::vector<Candidate>& candidates, const Candidate& last) {
  std::erase_if(candidates, [last](const Candidate& c) { return is_larger(last, c); });
}

// In double precision: the weights of a large vocabulary span more than a float's 24 bits.
double total_weight(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += static_cast<double>(c.weight);
  return sum;
}

// What is not excluded, with the penalty applied; weights are still to come.
std::vector<Candidate> collect(std::span<const float> logits, std::span<const int32_t> seen,
                               std::span<const int32_t> banned, double repeat_penalty) {
  std::vector<double> values(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      throw Error(ExitCode::kRuntime, "the logit of id " + std::to_string(i) +
                                          " is not finite; the model file may be damaged (edgellm "
                                          "verify tells)");
    }
    values[i] = static_cast<double>(logits[i]);
  }
  if (repeat_penalty != 1) {
    for (const int32_t id : seen) {
      // From the logit itself, so that an id seen twice is penalised once.
      const auto logit = static_cast<double>(logits[static_cast<size_t>(id)]);
      values[static_cast<size_t>(id)] = logit > 0 ? logit / repeat_penalty : logit * repeat_penalty;
    }
  }
  constexpr double kExcluded = -std::numeric_limits<double>::infinity();
  for (const int32_t id : banned) values[static_cast<size_t>(id)] = kExcluded;

  std::vector<Candidate> candidates;
  candidates.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != kExcluded) candidates.push_back({values[i], static_cast<int32_t>(i), 0});
  }
  return candidates;
}

void apply_top_k(std::vector<Candidate>& candidates, int top_k) {
  const auto k = static_cast<size_t>(top_k);
  if (k == 0 || k >= candidates.size()) return;
  std::vector<Candidate> order = candidates;
  std::nth_element(order.begin(), order.begin() + (top_k - 1), order.end(), is_larger);
  keep_down_to(candidates, order[k - 1]);
}

void apply_top_p(std::vector<Candidate>& candidates, double top_p) {
  if (top_p >= 1) return;
  const double total = total_weight(candidates);
  // Candidates below `floor` hold at most half of the (1 - top_p) * total that may be left out, so
  // those above it reach top_p * total before they run out. The other half is far more than the
  // rounding of the sums (2^-53 of the total for each candidate), but where top_p is next to 1.
  const double floor =
      top_p < 0.999999 ? 0.5 * (1 - top_p) * total / static_cast<double>(candidates.size()) : 0;
  // A heap, because only the few that are needed have to come in order.
  std::vector<Candidate> heap;
  for (const Candidate& c : candidates) {
    if (static_cast<double>(c.weight) >= floor) heap.push_back(c);
  }
  std::make_heap(heap.begin(), heap.end(), is_smaller);
  double sum = 0;
  while (true) {
    sum += static_cast<double>(heap.front().weight);
    if (sum >= top_p * total || heap.size() == 1) break;
    std::pop_heap(heap.begin(), heap.end(), is_smaller);
    heap.pop_back();
  }
  keep_down_to(candidates, heap.front());
}

// The softmax in the log domain.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits)
      : max_(*std::max_element(logits.begin(), logits.end())) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max_);
    log_sum_ = std::log(sum);
  }
  double operator()(float logit) const { return static_cast<double>(logit) - max_ - log_sum_; }

 private:
  double max_;
  double log_sum_;
};

// SplitMix64 (Steele, Lea, Flood 2014): its finaliser, and what its state grows by.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
constexpr uint64_t kGamma = 0x9e3779b97f4a7c15u;

}  // namespace

std::string sampling_problem(const SamplingOptions& options) {
  const auto problem = [](const char* name, double value, const char* expected) {
    std::ostringstream message;
    message << name << " is " << value << "; use " << expected;
    return message.str();
  };
  // Written so that NaN is out of every range.
  if (!(options.temperature >= 0 && std::isfinite(options.temperature))) {
    return problem("the temperature (--temp)", options.temperature,
                   "0 (greedy) or more, for example 0.7");
  }
  if (options.top_k < 0) {
    return problem("--top-k", options.top_k, "a number of tokens, or 0 to switch it off");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return problem("--top-p", options.top_p, "a value above 0 and at most 1 (1: off)");
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    return problem("--min-p", options.min_p, "a value from 0 (off) to 1");
  }
  if (!(options.repeat_penalty >= 0.01 && options.repeat_penalty <= 100)) {
    return problem("the repetition penalty (--repeat-penalty)", options.repeat_penalty,
                   "a value from 0.01 to 100 (1: off)");
  }
  return "";
}

double sampling_uniform(uint64_t seed, uint64_t position) {
  const uint64_t bits = mix(mix(seed) + (position + 1) * kGamma);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int32_t choose_id(std::span<const float> logits, std::span<const int32_t> seen,
                  std::span<const int32_t> banned, const SamplingOptions& options,
                  uint64_t position) {
  std::vector<Candidate> candidates = collect(logits, seen, banned, options.repeat_penalty);
  if (candidates.empty()) return -1;
  const Candidate largest = *std::min_element(candidates.begin(), candidates.end(), is_larger);
  if (options.temperature == 0) return largest.id;

  apply_top_k(candidates, options.top_k);
  for (Candidate& c : candidates) {
    // Far below where exp is 0: a double beyond a float's range has no conversion.
    const double exponent = std::max((c.logit - largest.logit) / options.temperature, -1000.0);
    c.weight = canonical_exp(static_cast<float>(exponent));
  }
  apply_top_p(candidates, options.top_p);
  // The largest weight is exp(0) = 1.
  std::erase_if(candidates,
                [&](const Candidate& c) { return static_cast<double>(c.weight) < options.min_p; });

  // The sum ends at the total and the uniform is below 1, so their product is below it, rounded or
  // not: some candidate is the first whose sum exceeds it, and its weight is not 0.
  const double drawn = sampling_uniform(options.seed, position) * total_weight(candidates);
  double sum = 0;
  for (const Candidate& c : candidates) {
    sum += static_cast<double>(c.weight);
    if (sum > drawn) return c.id;
  }
  throw ContractViolation("choose_id: no candidate was drawn");
}

double log_probability(std::span<const float> logits, int32_t id) {
  return LogSoftmax(logits)(logits[static_cast<size_t>(id)]);
}

TokenLogprobs log_probabilities(std::span<const float> logits, int32_t id, int n_top) {
  require(n_top >= 0 && static_cast<size_t>(n_top) <= logits.size(),
          "log_probabilities: more ids than the vocabulary has");
  const LogSoftmax log_softmax(logits);
  const auto logit = [&](int32_t of) { return logits[static_cast<size_t>(of)]; };
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + n_top, order.end(), [&](int32_t a, int32_t b) {
    return logit(a) > logit(b) || (logit(a) == logit(b) && a < b);
  });
  TokenLogprobs result;
  result.logprob = log_softmax(logit(id));
  for (int32_t of : std::span(order).first(static_cast<size_t>(n_top))) {
    result.top.push_back({of, log_softmax(logit(of))});
  }
  return result;
}

}  // namespace edgellm
