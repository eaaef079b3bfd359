// choose() and logprobs() of the CPU backend against ref, bit for bit.
#include <catch2/catch.hpp>
#include <map>
#include <memory>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/choose_data.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

TEST_CASE("the CPU chooses the ids of ref, for every mix of rules") {
  Random random(1);
  std::map<int32_t, int> chosen;
  for (const cpu::Primitives* isa : cpu::usable_isas()) {
    cpu::Pool pool(2, *isa);
    for (int round = 0; round < 400; ++round) {
      constexpr int kVocabs[] = {1, 2, 3, 31, 97, 256, 1000, 4099};
      const bool is_real = round % 100 == 99;
      const int vocab =
          is_real ? 128256 : kVocabs[random.below(static_cast<int>(std::size(kVocabs)))];
      const int rows = is_real ? 2 : 1 + random.below(5);
      ChooseData data(random, rows, vocab);
      std::vector<int32_t> ids(static_cast<size_t>(rows));
      ChooseArgs args = data.args;
      args.ids = ids.data();
      ref::choose(args);

      Poisoned<int32_t> actual(ids.size());
      args.ids = actual.data();
      cpu::choose(args, pool);
      INFO(isa->name << ", round " << round << ", vocab " << vocab << ", rows " << rows);
      REQUIRE(first_difference(ids, actual.values()) == "");
      REQUIRE(actual.guards_intact());
      for (const int32_t id : ids) ++chosen[id];
    }
  }
  CHECK(chosen[-1] > 0);       // all were banned
  CHECK(chosen.size() > 300);  // and the draw was not always the arg-max
}

TEST_CASE("chosen ids are counted where a sequence keeps marks, up to the most that a mark holds") {
  const std::vector<ChoiceRule> rules = {{.marks = 1}, {.marks = 0}, {.marks = 1}};
  const std::vector<int32_t> sequences = {2, 1, 0};
  const std::vector<int32_t> row_list = {2, 0, 1};  // sequences 0, 2 and 1
  const std::vector<int32_t> ids = {3, -1, 0};
  constexpr int kVocab = 5;
  std::vector<uint16_t> marks(15);
  marks[3] = kMarkPrompt | (kMarkCount - 1);
  int32_t fault = 0;
  const auto count = [&] {
    const CountArgs args{
        ids.data(), row_list.data(), sequences.data(), rules.data(), marks.data(), &fault,
        3,          kVocab};
    for (int row = 0; row < args.rows; ++row) count_choice(args, row);
    return marks;
  };
  std::vector<uint16_t> expected(15);
  expected[3] = kMarkPrompt | kMarkCount;
  CHECK(count() == expected);
  CHECK(count() == expected);
  marks[3] = 0;
  expected[3] = 1;
  CHECK(count() == expected);
  fault = 3;
  CHECK(count() == expected);
}

TEST_CASE("the CPU's log-probabilities are made of the numbers of ref") {
  Random random(2);
  for (const cpu::Primitives* isa : cpu::usable_isas()) {
    cpu::Pool pool(2, *isa);
    for (const int vocab : {1, 2, 31, 1000, 4099}) {
      for (int kind = 0; kind < kLogitKinds; ++kind) {
        for (const int n_top : {0, 1, 5, 31, 1024}) {
          if (n_top > vocab) continue;
          const LogprobData data(random, vocab, kind);
          constexpr int kRows = LogprobData::kRows;
          std::vector<LogprobSums> sums(kRows);
          std::vector<LogprobLogit> top(static_cast<size_t>(kRows * n_top));
          LogprobArgs args{
              data.logits.data(), data.ids.data(), sums.data(), top.data(), n_top, kRows, vocab};
          ref::logprobs(args);
          std::vector<LogprobSums> actual_sums(kRows);
          std::vector<LogprobLogit> actual_top(top.size());
          args.sums = actual_sums.data();
          args.top = actual_top.data();
          cpu::logprobs(args, pool);
          INFO(isa->name << ", vocab " << vocab << ", kind " << kind << ", top " << n_top);
          REQUIRE(are_equal(actual_sums, sums));
          REQUIRE(in_order(actual_top, n_top) == in_order(top, n_top));
        }
      }
    }
  }
}

}  // namespace
}  // namespace edgellm
