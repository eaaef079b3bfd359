// What sampling options mean: the choice of ref::choose() by them, and its distribution against the
// softmax. tests/kernels/choose_test.cpp compares the back ends.
#include "engine/sampling.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/support/choose_id.h"

namespace edgellm {
namespace {

using test::choose_id;
using test::HadIds;

constexpr float kInf = std::numeric_limits<float>::infinity();

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Which ids can come out, from many positions.
std::vector<int32_t> possible(const std::vector<float>& logits, const SamplingOptions& options,
                              const HadIds& had = {}) {
  std::vector<int32_t> ids;
  for (uint64_t position = 1; position <= 3000; ++position) {
    const int32_t id = choose_id(logits, had, options, position);
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
  CHECK(possible(logits, options, {.prompt = {}, .chosen = {}, .banned = {1, 4}}) == Ids{0, 2, 3});

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
  const auto chosen = [&](const std::vector<float>& logits, std::vector<int32_t> prompt,
                          std::vector<int32_t> answer = {}) {
    return choose_id(logits, {std::move(prompt), std::move(answer), {}}, options, 1);
  };
  const std::vector<float> up = {3, 2, 1};
  CHECK(chosen(up, {}) == 0);
  CHECK(chosen(up, {0}) == 1);                // 1.5 < 2
  CHECK(chosen(up, {}, {0}) == 1);            // of the answer as well
  CHECK(chosen(up, {0, 0, 1, 1}) == 0);       // 1.5, 1, 1
  CHECK(chosen(up, {0, 1}, {0, 0, 1}) == 0);  // in both: once
  const std::vector<float> down = {-1, -1.5f, -4};
  CHECK(chosen(down, {0}) == 1);     // -2 < -1.5
  CHECK(chosen(down, {0, 1}) == 0);  // -2, -3
  options.repeat_penalty = 0.5;
  CHECK(chosen(down, {1}) == 1);  // -0.75
}

TEST_CASE("frequency and presence penalties are subtracted by what the answer holds") {
  SamplingOptions options;
  const std::vector<float> logits = {3, 2.5f, 1};
  const auto chosen = [&](std::vector<int32_t> prompt, std::vector<int32_t> answer) {
    return choose_id(logits, {std::move(prompt), std::move(answer), {}}, options, 1);
  };
  options.frequency_penalty = 0.4;
  CHECK_FALSE(options.is_argmax());
  CHECK(chosen({0, 0, 0, 0}, {}) == 0);  // the prompt does not count
  CHECK(chosen({}, {0}) == 0);           // 2.6
  CHECK(chosen({}, {0, 0}) == 1);        // 2.2
  CHECK(chosen({}, {0, 0, 1}) == 0);     // 2.2, 2.1
  options.frequency_penalty = 0;
  options.presence_penalty = 0.6;
  CHECK(chosen({0}, {}) == 0);
  CHECK(chosen({}, {0}) == 1);           // 2.4
  CHECK(chosen({}, {0, 0, 0, 1}) == 0);  // 2.4, 1.9
  options.presence_penalty = -1;
  CHECK(chosen({}, {1}) == 1);  // 3.5
  options.presence_penalty = 1;
  options.frequency_penalty = 0.25;
  options.repeat_penalty = 2;         // first the division: 3 / 2 - 2 * 0.25 - 1 = 0
  CHECK(chosen({}, {0, 0, 1}) == 2);  // 0, 0, 1
}

TEST_CASE("a bias is added before the penalties, and a banned id is never chosen") {
  SamplingOptions options;
  const std::vector<float> logits = {3, 2.5f, 1};
  options.logit_bias = {{1, 1.0f}, {2, -5.0f}};
  CHECK_FALSE(options.is_argmax());
  CHECK(choose_id(logits, {}, options, 1) == 1);  // 3, 3.5, -4
  CHECK(choose_id(logits, {{}, {}, {1}}, options, 1) == 0);
  CHECK(choose_id(logits, {{}, {}, {0, 1}}, options, 1) == 2);
  options.repeat_penalty = 2;
  CHECK(choose_id(logits, {{1}, {}, {}}, options, 1) == 0);  // 3.5 / 2
  options.logit_bias = {{0, -100.0f}, {1, -100.0f}, {2, 100.0f}};
  options.temperature = 1;
  CHECK(possible(logits, options) == std::vector<int32_t>{2});
}

TEST_CASE("greedy takes the lowest of equal ids, and -1 where there is none") {
  const SamplingOptions greedy;
  CHECK(greedy.is_argmax());
  const std::vector<float> ties = {1, 5, -0.0f, 5, 5};
  CHECK(choose_id(ties, {}, greedy, 7) == 1);
  CHECK(choose_id(ties, {{}, {}, {1, 3}}, greedy, 7) == 4);
  CHECK(choose_id(std::vector<float>{-0.0f, 0.0f}, {}, greedy, 1) == 0);
  CHECK(choose_id(ties, {{}, {}, {0, 1, 2, 3, 4}}, at_temperature(1), 1) == -1);
}

TEST_CASE("logits at the ends of the range are sampled") {
  const float largest = std::numeric_limits<float>::max();
  SamplingOptions options = at_temperature(1e-300);
  options.repeat_penalty = 0.01;
  options.top_p = 0.9;
  // The penalty goes no further than the largest float, and then there is a tie.
  CHECK(possible({-largest, largest, 0, largest}, options, {{0, 1}, {}, {}}) ==
        std::vector<int32_t>{1, 3});
  CHECK(possible({-largest, -largest}, at_temperature(1e300)) == std::vector<int32_t>{0, 1});
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
        ++counts[static_cast<size_t>(choose_id(logits, {}, options, static_cast<uint64_t>(i + 1)))];
      }
      INFO("seed " << seed << ", temperature " << temperature);
      // 7 degrees of freedom: beyond 24.3 in one of a thousand experiments, and these are fixed.
      CHECK(chi_square(counts, probabilities) < 24.3);
    }
  }
}

TEST_CASE("ids come as often as transformers' logits processors say, and no others") {
  std::ifstream file(EDGELLM_SOURCE_DIR "/tests/data/sampling/goldens.json");
  const nlohmann::json goldens = nlohmann::json::parse(file);
  REQUIRE(goldens["cases"].size() == 60);
  uint64_t seed = 0;
  for (const nlohmann::json& golden : goldens["cases"]) {
    const auto logits = golden["logits"].get<std::vector<float>>();
    const auto probabilities = golden["probabilities"].get<std::vector<double>>();
    const nlohmann::json& given = golden["options"];
    SamplingOptions options;
    options.temperature = given["temperature"];
    options.top_k = given["top_k"];
    options.top_p = given["top_p"];
    options.min_p = given["min_p"];
    options.repeat_penalty = given["repeat_penalty"];
    options.seed = ++seed;
    HadIds had;
    had.prompt = golden["prompt"].get<std::vector<int32_t>>();

    constexpr int kDraws = 4000;
    std::vector<int> counts(logits.size());
    for (uint64_t position = 1; position <= kDraws; ++position) {
      ++counts[static_cast<size_t>(choose_id(logits, had, options, position))];
    }
    // Ids that are drawn too rarely for the test count together.
    std::vector<int> often = {0};
    std::vector<double> expected = {0};
    for (size_t id = 0; id < logits.size(); ++id) {
      INFO("case " << seed << ", id " << id << ", probability " << probabilities[id]);
      if (probabilities[id] == 0) REQUIRE(counts[id] == 0);
      if (probabilities[id] * kDraws < 5) {
        often[0] += counts[id];
        expected[0] += probabilities[id];
      } else {
        REQUIRE(counts[id] > 0);
        often.push_back(counts[id]);
        expected.push_back(probabilities[id]);
      }
    }
    INFO("case " << seed << ", " << golden["options"].dump());
    CHECK(often[0] <= 5 + 3 * expected[0] * kDraws);
    often.erase(often.begin());
    expected.erase(expected.begin());
    const double left = std::accumulate(expected.begin(), expected.end(), 0.0);
    for (double& p : expected) p /= left;
    // Beyond this in less than one of a thousand experiments, and these are fixed.
    const auto degrees = static_cast<double>(expected.size() - 1);
    CHECK(chi_square(often, expected) < degrees + 3.5 * std::sqrt(2 * degrees) + 7);
  }
}

TEST_CASE("the random bits are SplitMix64's, spread evenly over positions, pairs and seeds") {
  // The first outputs of SplitMix64 with seed 0; mix(0) is 0.
  const uint64_t published[] = {0xe220a8397b1dcdafull, 0x6e789e6aa1b965f4ull,
                                0x06c45d188009454full};
  for (uint64_t i = 0; i < 3; ++i) CHECK(random_bits(0, i) == published[i]);
  // By the formula of docs/numerics.md in Python.
  CHECK(random_bits(1, 0) >> 11 == 6753131800803418);
  CHECK(random_bits(0xffffffffffffffffull, 123456789) >> 11 == 6041546424892937);
  // 8 x 8 cells of a number and the next one, by position and by seed.
  const auto check_pairs = [](const std::function<uint64_t(uint64_t)>& bits) {
    std::vector<int> counts(64);
    for (uint64_t i = 0; i < 40'000; ++i)
      ++counts[(bits(2 * i) >> 61) * 8 + (bits(2 * i + 1) >> 61)];
    CHECK(chi_square(counts, std::vector<double>(64, 1.0 / 64)) < 103.4);  // 63 degrees, 0.1 %
  };
  check_pairs([](uint64_t i) { return random_bits(5, i); });
  check_pairs([](uint64_t i) { return random_bits(i, 5); });
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
  for (const double bad : {-100.1, 100.1, nan}) {
    refused([bad](auto& options) { options.frequency_penalty = bad; }, "--frequency-penalty");
    refused([bad](auto& options) { options.presence_penalty = bad; }, "--presence-penalty");
    refused(
        [bad](auto& options) {
          options.logit_bias = {{1, static_cast<float>(bad)}};
        },
        "logit_bias");
  }
  refused([](auto& options) { options.logit_bias.resize(1025); }, "1025 entries");
}

TEST_CASE("log-probabilities are those of the softmax, the largest first, ties by id") {
  const std::vector<float> logits = {1, 3, -2, 3, 0};
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  CHECK(log_probability(logits, 2) == Approx(-2 - std::log(sum)));
  const int32_t chosen = 2;
  LogprobSums sums{};
  std::vector<LogprobLogit> top(3);
  ref::logprobs({logits.data(), &chosen, &sums, top.data(), 3, 1, 5});
  const TokenLogprobs found = token_logprobs(sums, top);
  CHECK(found.logprob == Approx(log_probability(logits, 2)).epsilon(1e-6));
  REQUIRE(found.top.size() == 3);
  const int32_t ids[] = {1, 3, 0};
  for (size_t i = 0; i < 3; ++i) {
    CHECK(found.top[i].id == ids[i]);
    CHECK(found.top[i].logprob == Approx(log_probability(logits, ids[i])).epsilon(1e-6));
  }
}

}  // namespace
}  // namespace edgellm
