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

TEST_CASE("the CPU chooses the ids of ref and counts them, for every mix of rules") {
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
      const int32_t fault = random.below(5) == 0 ? 3 : 0;
      std::vector<uint16_t> marks = data.marks;
      std::vector<int32_t> ids(static_cast<size_t>(rows));
      ChooseArgs args = data.args;
      args.marks = marks.data();
      args.ids = ids.data();
      args.fault = &fault;
      ref::choose(args);

      Poisoned<int32_t> actual(ids.size());
      args.marks = data.marks.data();
      args.ids = actual.data();
      cpu::choose(args, pool);
      INFO(isa->name << ", round " << round << ", vocab " << vocab << ", rows " << rows);
      REQUIRE(first_difference(ids, actual.values()) == "");
      REQUIRE(actual.guards_intact());
      REQUIRE(marks == data.marks);
      for (const int32_t id : ids) ++chosen[id];
    }
  }
  CHECK(chosen[-1] > 0);       // all were banned
  CHECK(chosen.size() > 300);  // and the draw was not always the arg-max
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
