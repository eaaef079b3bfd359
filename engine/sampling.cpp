#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include "base/error.h"
#include "kernels/choice.h"

namespace edgellm {
namespace {

constexpr double kTwoTo64 = 18446744073709551616.0;

// The nearest float, finite also for the inverse of a temperature next to 0.
float finite_float(double value) {
  return static_cast<float>(
      std::min(value, static_cast<double>(std::numeric_limits<float>::max())));
}

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
  const auto is_penalty = [](double value) { return value >= -100 && value <= 100; };
  if (!is_penalty(options.frequency_penalty)) {
    return problem("the frequency penalty (--frequency-penalty)", options.frequency_penalty,
                   "a value from -100 to 100 (0: off)");
  }
  if (!is_penalty(options.presence_penalty)) {
    return problem("the presence penalty (--presence-penalty)", options.presence_penalty,
                   "a value from -100 to 100 (0: off)");
  }
  if (options.logit_bias.size() > static_cast<size_t>(kMaxBiases)) {
    return "logit_bias has " + std::to_string(options.logit_bias.size()) +
           " entries; use at most " + std::to_string(kMaxBiases);
  }
  for (const LogitBias& entry : options.logit_bias) {
    if (!is_penalty(static_cast<double>(entry.bias))) {
      return problem("a bias of logit_bias", static_cast<double>(entry.bias),
                     "a value from -100 to 100");
    }
  }
  return "";
}

ChoiceRule choice_rule(const SamplingOptions& options, bool bans) {
  ChoiceRule rule;
  rule.seed = options.seed;
  rule.samples = options.temperature > 0 ? 1 : 0;
  if (rule.samples != 0) rule.inverse_temperature = finite_float(1 / options.temperature);
  rule.top_k = options.top_k;
  // At least one unit, because 0 switches it off.
  if (options.top_p < 1) {
    rule.top_p = std::max<uint64_t>(1, static_cast<uint64_t>(options.top_p * kTwoTo64));
  }
  rule.min_weight = std::max<uint64_t>(
      1, static_cast<uint64_t>(std::ceil(options.min_p * static_cast<double>(kMostWeight))));
  rule.repetition = static_cast<float>(options.repeat_penalty);
  rule.frequency = static_cast<float>(options.frequency_penalty);
  rule.presence = static_cast<float>(options.presence_penalty);
  rule.n_biases = static_cast<int32_t>(options.logit_bias.size());
  rule.marks = options.has_penalty() || rule.n_biases > 0 || bans ? 1 : 0;
  return rule;
}

bool keeps_few_ids(const SamplingOptions& options, int vocab) {
  return keeps_few(choice_rule(options, /*bans=*/false), vocab);
}

double log_probability(std::span<const float> logits, int32_t id) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return static_cast<double>(logits[static_cast<size_t>(id)]) - max - std::log(sum);
}

TokenLogprobs token_logprobs(const LogprobSums& sums, std::span<const LogprobLogit> top) {
  const double log_sum = std::log(std::ldexp(static_cast<double>(sums.sum), -kWeightBits));
  const auto logprob = [&](float logit) {
    return static_cast<double>(logit) - static_cast<double>(sums.largest) - log_sum;
  };
  std::vector<LogprobLogit> order(top.begin(), top.end());
  std::sort(order.begin(), order.end(), [](const LogprobLogit& a, const LogprobLogit& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  });
  TokenLogprobs result;
  result.logprob = logprob(sums.chosen);
  for (const LogprobLogit& entry : order) result.top.push_back({entry.id, logprob(entry.logit)});
  return result;
}

TokenLogprobs token_logprobs(std::span<const float> logits, int32_t id, int n_top) {
  LogprobSums sums = {.sum = 0,
                      .largest = *std::max_element(logits.begin(), logits.end()),
                      .chosen = logits[static_cast<size_t>(id)]};
  std::vector<LogprobLogit> top(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    sums.sum += logit_weight(logits[i], sums.largest, 1);
    top[i] = {static_cast<int32_t>(i), logits[i]};
  }
  const auto end = top.begin() + n_top;
  std::partial_sort(top.begin(), end, top.end(), [](const LogprobLogit& a, const LogprobLogit& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  });
  return token_logprobs(sums, {top.begin(), end});
}

}  // namespace edgellm
