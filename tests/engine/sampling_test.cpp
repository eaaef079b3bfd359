// choose_id(): against a slow obvious twin on hard logits, and its distribution against the
// softmax.
#include "engine/sampling.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"
#include "kernels/canonical.h"
#include "tests/support/random.h"

namespace edgellm {
namespace {

using test::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// The definition of docs/numerics.md, step by step, with sorted lists.
int32_t slow_choice(const std::vector<float>& logits, const std::vector<int32_t>& seen,
                    const std::vector<int32_t>& banned, const SamplingOptions& options,
                    uint64_t position) {
  std::map<int32_t, double> penalised;
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    double logit = static_cast<double>(logits[static_cast<size_t>(id)]);
    if (contains(seen, id) && logit > 0) logit /= options.repeat_penalty;
    if (contains(seen, id) && logit <= 0) logit *= options.repeat_penalty;
    if (!contains(banned, id) && std::isfinite(logit)) penalised[id] = logit;
  }
  if (penalised.empty()) return -1;
  std::vector<int32_t> ranked;
  for (const auto& [id, logit] : penalised) ranked.push_back(id);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](int32_t a, int32_t b) { return penalised[a] > penalised[b]; });
  if (options.temperature == 0) return ranked[0];

  if (options.top_k > 0) ranked.resize(std::min(ranked.size(), static_cast<size_t>(options.top_k)));
  std::map<int32_t, double> weights;  // in ascending order of ids
  const double largest = penalised[ranked[0]];
  for (const int32_t id : ranked) {
    const double exponent = (penalised[id] - largest) / options.temperature;
    const float weight = exponent < -100 ? 0 : canonical_exp(static_cast<float>(exponent));
    weights[id] = static_cast<double>(weight);
  }
  const auto total = [&] {
    double sum = 0;
    for (const auto& [id, weight] : weights) sum += weight;
    return sum;
  };
  if (options.top_p < 1) {
    const double wanted = options.top_p * total();
    double before = 0;
    for (const int32_t id : ranked) {
      const double weight = weights[id];
      if (before >= wanted && id != ranked[0]) weights.erase(id);
      before += weight;
    }
  }
  std::erase_if(weights, [&](const auto& entry) { return entry.second < options.min_p; });

  const double drawn = sampling_uniform(options.seed, position) * total();
  double sum = 0;
  for (const auto& [id, weight] : weights) {
    sum += weight;
    if (sum > drawn) return id;
  }
  return -2;
}

std::vector<int32_t> random_ids(Random& random, int n, size_t vocab) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(random.below(static_cast<int>(vocab)));
  return ids;
}

// Quantised, so that many are equal; zeros of both signs; some excluded.
std::vector<float> hard_logits(Random& random, size_t vocab) {
  const float scale = random.below(2) == 0 ? 1.0f : 8.0f;
  std::vector<float> logits = random.normals(vocab, scale);
  for (float& logit : logits) {
    if (random.below(3) > 0) logit = std::round(2 * logit) / 2;
    if (random.below(10) == 0) logit = -kInf;
    if (random.below(10) == 0) logit = random.below(2) == 0 ? 0.0f : -0.0f;
  }
  return logits;
}

TEST_CASE("choose_id agrees with sorted lists on random logits, for every mix of filters") {
  Random random(1);
  const auto pick = [&](std::vector<double> values) {
    return values[static_cast<size_t>(random.below(static_cast<int>(values.size())))];
  };
  std::map<int32_t, int> chosen;
  for (int round = 0; round < 6000; ++round) {
    const size_t vocab = static_cast<size_t>(pick({1, 2, 3, 31, 97, 256, 1000}));
    const std::vector<float> logits = hard_logits(random, vocab);
    const auto seen = random_ids(random, random.below(20), vocab);
    const auto banned = random_ids(random, random.below(4), vocab);
    SamplingOptions options;
    options.temperature = pick({0, 1e-6, 0.3, 0.7, 1, 2.5, 1e9});
    options.top_k = static_cast<int>(pick({0, 0, 1, 2, 5, 40, 1000}));
    options.top_p = pick({1, 1, 1e-9, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9});
    options.min_p = pick({0, 0, 0.01, 0.2, 0.9, 1});
    options.repeat_penalty = pick({1, 1.1, 0.5, 100});
    options.seed = random.bits();
    const auto position = static_cast<uint64_t>(random.below(5000));
    INFO("round " << round << ", temperature " << options.temperature << ", top_k " << options.top_k
                  << ", top_p " << options.top_p << ", min_p " << options.min_p << ", penalty "
                  << options.repeat_penalty);
    REQUIRE(sampling_problem(options).empty());
    const int32_t id = choose_id(logits, seen, banned, options, position);
    REQUIRE(id == slow_choice(logits, seen, banned, options, position));
    if (id >= 0) {
      REQUIRE(!contains(banned, id));
      REQUIRE(logits[static_cast<size_t>(id)] != -kInf);
    }
    ++chosen[id];
  }
  CHECK(chosen[-1] > 0);      // all were excluded
  CHECK(chosen.size() > 50);  // and the draw was not always the arg-max
}

// Which ids can come out, from many positions.
std::vector<int32_t> possible(const std::vector<float>& logits, const SamplingOptions& options,
                              const std::vector<int32_t>& seen = {},
                              const std::vector<int32_t>& banned = {}) {
  std::vector<int32_t> ids;
  for (uint64_t position = 0; position < 3000; ++position) {
    const int32_t id = choose_id(logits, seen, banned, options, position);
    if (!contains(ids, id)) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

SamplingOptions at_temperature(double temperature) {
  SamplingOptions options;
  options.temperature = temperature;
  return options;
}

TEST_CASE("each filter keeps what its definition says") {
  using Ids = std::vector<int32_t>;
  const auto ln = [](double p) { return static_cast<float>(std::log(p)); };
  const std::vector<float> logits = {ln(0.1), ln(0.4), ln(0.2), ln(0.2), ln(0.1)};
  SamplingOptions options = at_temperature(1);
  CHECK(possible(logits, options) == Ids{0, 1, 2, 3, 4});
  CHECK(possible(logits, options, {}, {1, 4}) == Ids{0, 2, 3});

  options.top_k = 2;  // of the two with 0.2 the lower id
  CHECK(possible(logits, options) == Ids{1, 2});
  options.top_k = 4;
  CHECK(possible(logits, options) == Ids{0, 1, 2, 3});
  options.top_k = 5;
  CHECK(possible(logits, options).size() == 5);

  options = at_temperature(1);
  options.top_p = 0.39;
  CHECK(possible(logits, options) == Ids{1});
  options.top_p = 0.41;  // the id that crosses the border belongs to it
  CHECK(possible(logits, options) == Ids{1, 2});
  options.top_p = 0.79;
  CHECK(possible(logits, options) == Ids{1, 2, 3});
  options.top_k = 2;  // 0.4 and 0.2 are 2/3 and 1/3 of what is left
  options.top_p = 0.66;
  CHECK(possible(logits, options) == Ids{1});
  options.top_p = 0.67;
  CHECK(possible(logits, options) == Ids{1, 2});

  options = at_temperature(1);
  options.min_p = 0.26;
  CHECK(possible(logits, options) == Ids{1, 2, 3});
  options.min_p = 0.24;
  CHECK(possible(logits, options).size() == 5);
  options.min_p = 1;
  CHECK(possible(logits, options) == Ids{1});
  options.min_p = 0.26;  // at temperature 2 the ratios are square roots
  options.temperature = 2;
  CHECK(possible(logits, options).size() == 5);
}

TEST_CASE("the repetition penalty divides what is positive and multiplies what is not, once") {
  SamplingOptions options;
  options.repeat_penalty = 2;
  CHECK_FALSE(options.is_argmax());
  const std::vector<float> up = {3, 2, 1};
  CHECK(choose_id(up, {}, {}, options, 0) == 0);
  CHECK(choose_id(up, std::vector<int32_t>{0}, {}, options, 0) == 1);           // 1.5 < 2
  CHECK(choose_id(up, std::vector<int32_t>{0, 0, 1, 1}, {}, options, 0) == 0);  // 1.5, 1, 1
  const std::vector<float> down = {-1, -1.5f, -4};
  CHECK(choose_id(down, std::vector<int32_t>{0}, {}, options, 0) == 1);     // -2 < -1.5
  CHECK(choose_id(down, std::vector<int32_t>{0, 1}, {}, options, 0) == 0);  // -2, -3
  options.repeat_penalty = 0.5;
  CHECK(choose_id(down, std::vector<int32_t>{1}, {}, options, 0) == 1);  // -0.75
}

TEST_CASE("greedy takes the lowest of equal ids, and -1 where there is none") {
  const SamplingOptions greedy;
  CHECK(greedy.is_argmax());
  const std::vector<float> ties = {1, 5, -0.0f, 5, 5};
  CHECK(choose_id(ties, {}, {}, greedy, 7) == 1);
  CHECK(choose_id(ties, {}, std::vector<int32_t>{1, 3}, greedy, 7) == 4);
  CHECK(choose_id(std::vector<float>{-0.0f, 0.0f}, {}, {}, greedy, 0) == 0);
  CHECK(choose_id(ties, {}, std::vector<int32_t>{0, 1, 2, 3, 4}, at_temperature(1), 0) == -1);
  CHECK(choose_id(std::vector<float>{-kInf, -kInf}, {}, {}, at_temperature(1), 0) == -1);
}

TEST_CASE("logits at the ends of the range are sampled, those beyond are refused") {
  const float largest = std::numeric_limits<float>::max();
  SamplingOptions options = at_temperature(1e-300);
  options.repeat_penalty = 0.01;
  options.top_p = 0.9;
  CHECK(possible({-largest, largest, 0, largest}, options, {0, 1}) == std::vector<int32_t>{1});
  CHECK(possible({-largest, -largest}, at_temperature(1e300)) == std::vector<int32_t>{0, 1});
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf}) {
    for (const double temperature : {0.0, 1.0}) {
      std::string message;
      try {
        choose_id(std::vector<float>{0, 1, bad}, {}, {}, at_temperature(temperature), 0);
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::kRuntime);
        message = error.what();
      }
      CHECK(message.starts_with("the logit of id 2 is not finite"));
    }
  }
}

double chi_square(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  const double n = std::accumulate(counts.begin(), counts.end(), 0.0);
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = n * probabilities[i];
    sum += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return sum;
}

TEST_CASE("ids come as often as the softmax says") {
  const std::vector<float> logits = {0.5f, -1, 2, 0, 0, -3, 1.25f, -0.5f};
  constexpr int kDraws = 40'000;
  for (const uint64_t seed : {0ull, 1ull, 2ull, 0xffffffffffffffffull}) {
    for (const double temperature : {0.5, 1.0, 2.0}) {
      std::vector<double> probabilities;
      for (const float logit : logits) {
        probabilities.push_back(std::exp(static_cast<double>(logit) / temperature));
      }
      const double sum = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
      for (double& p : probabilities) p /= sum;
      SamplingOptions options = at_temperature(temperature);
      options.seed = seed;
      std::vector<int> counts(logits.size());
      for (int i = 0; i < kDraws; ++i) {
        ++counts[static_cast<size_t>(choose_id(logits, {}, {}, options, static_cast<uint64_t>(i)))];
      }
      INFO("seed " << seed << ", temperature " << temperature);
      // 7 degrees of freedom: beyond 24.3 in one of a thousand experiments, and these are fixed.
      CHECK(chi_square(counts, probabilities) < 24.3);
    }
  }
}

TEST_CASE("the uniforms are SplitMix64's, spread evenly over positions, pairs and seeds") {
  // The first outputs of SplitMix64 with seed 0; mix(0) is 0.
  const uint64_t published[] = {0xe220a8397b1dcdafull, 0x6e789e6aa1b965f4ull,
                                0x06c45d188009454full};
  for (uint64_t i = 0; i < 3; ++i) {
    CHECK(sampling_uniform(0, i) == static_cast<double>(published[i] >> 11) / 9007199254740992.0);
  }
  // By the formula of docs/numerics.md in Python.
  CHECK(sampling_uniform(1, 0) == 6753131800803418.0 / 9007199254740992.0);
  CHECK(sampling_uniform(0xffffffffffffffffull, 123456789) ==
        6041546424892937.0 / 9007199254740992.0);
  // 8 x 8 cells of a uniform and the next one, by position and by seed.
  const auto check_pairs = [](const std::function<double(uint64_t)>& uniform) {
    std::vector<int> counts(64);
    for (uint64_t i = 0; i < 40'000; ++i) {
      const double a = uniform(2 * i);
      const double b = uniform(2 * i + 1);
      REQUIRE((a >= 0 && a < 1 && b >= 0 && b < 1));
      ++counts[static_cast<size_t>(a * 8) * 8 + static_cast<size_t>(b * 8)];
    }
    CHECK(chi_square(counts, std::vector<double>(64, 1.0 / 64)) < 103.4);  // 63 degrees, 0.1 %
  };
  check_pairs([](uint64_t i) { return sampling_uniform(5, i); });
  check_pairs([](uint64_t i) { return sampling_uniform(i, 5); });
}

TEST_CASE("values out of range are named, with what to use") {
  CHECK(sampling_problem({}).empty());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const std::function<void(SamplingOptions&)>& change, const char* name) {
    SamplingOptions options;
    change(options);
    const std::string problem = sampling_problem(options);
    INFO(problem);
    CHECK(problem.find(name) != std::string::npos);
    CHECK(problem.find("; use ") != std::string::npos);
  };
  for (const double bad : {-0.1, nan, static_cast<double>(kInf)}) {
    refused([bad](auto& options) { options.temperature = bad; }, "--temp");
  }
  refused([](auto& options) { options.top_k = -1; }, "--top-k is -1");
  for (const double bad : {-0.1, 0.0, 1.01, nan}) {
    refused([bad](auto& options) { options.top_p = bad; }, "--top-p");
  }
  for (const double bad : {-0.1, 1.01, nan}) {
    refused([bad](auto& options) { options.min_p = bad; }, "--min-p");
  }
  for (const double bad : {-1.0, 0.0, 0.009, 101.0, nan}) {
    refused([bad](auto& options) { options.repeat_penalty = bad; }, "--repeat-penalty");
  }
}

TEST_CASE("log-probabilities are those of the softmax, the largest first, ties by id") {
  const std::vector<float> logits = {1, 3, -2, 3, 0};
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  const TokenLogprobs found = log_probabilities(logits, 2, 3);
  CHECK(found.logprob == Approx(-2 - std::log(sum)));
  CHECK(found.logprob == log_probability(logits, 2));
  REQUIRE(found.top.size() == 3);
  const int32_t ids[] = {1, 3, 0};
  for (size_t i = 0; i < 3; ++i) {
    CHECK(found.top[i].id == ids[i]);
    CHECK(found.top[i].logprob == log_probability(logits, ids[i]));
  }
  CHECK(log_probabilities(logits, 0, 0).top.empty());
  CHECK(log_probabilities(logits, 0, 5).top.back().id == 2);
}

}  // namespace
}  // namespace edgellm
