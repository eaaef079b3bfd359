// choose() and logprobs() of the CUDA backend against ref, bit for bit.
#include <catch2/catch.hpp>
#include <utility>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/choose_data.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

// What a pass of rows leaves: ids and marks.
using Chosen = std::pair<std::vector<int32_t>, std::vector<uint16_t>>;

Chosen chosen_by_ref(const ChooseData& data, int32_t fault) {
  Chosen result{std::vector<int32_t>(static_cast<size_t>(data.args.rows)), data.marks};
  ChooseArgs args = data.args;
  args.ids = result.first.data();
  ref::choose(args);
  const CountArgs counts{
      args.ids,  args.row_list, args.places.sequence, args.rules, result.second.data(), &fault,
      args.rows, args.vocab};
  for (int row = 0; row < counts.rows; ++row) count_choice(counts, row);
  return result;
}

Chosen chosen_by_gpu(const ChooseData& data, int32_t fault) {
  const OnDevice<float> logits(data.logits);
  const OnDevice<int32_t> row_list(data.row_list);
  const OnDevice<int32_t> sequences(data.sequences);
  const OnDevice<int32_t> positions(data.positions);
  const OnDevice<ChoiceRule> rules(data.rules);
  const OnDevice<uint16_t> marks(data.marks);
  const OnDevice<LogitBias> biases(data.biases);
  const OnDevice<int32_t> ids(static_cast<size_t>(data.args.rows));
  const OnDevice<int32_t> faults(std::vector<int32_t>{fault});
  cuda::choose({logits.data(),
                row_list.data(),
                {sequences.data(), positions.data()},
                rules.data(),
                marks.data(),
                biases.data(),
                ids.data(),
                data.args.rows,
                data.args.vocab},
               nullptr);
  cuda::count_choices({ids.data(), row_list.data(), sequences.data(), rules.data(), marks.data(),
                       faults.data(), data.args.rows, data.args.vocab},
                      nullptr);
  finish();
  return {ids.read(), marks.read()};
}

TEST_CASE("CUDA chooses the ids of ref and counts them, in parts of a row or whole rows", "[gpu]") {
  if (no_gpu()) return;
  Random random(1);
  struct Size {
    int rows, vocab, rounds;
  };
  // One to eight blocks a row, values that wait in shared memory and values that do not.
  const Size sizes[] = {{1, 1, 20},     {1, 2, 20},     {2, 31, 40},    {3, 97, 40},
                        {16, 1000, 20}, {17, 1025, 20}, {40, 4099, 10}, {70, 2048, 10},
                        {150, 301, 5},  {1, 8191, 40},  {5, 49152, 8},  {3, 128256, 8},
                        {40, 32003, 2}, {70, 60001, 1}, {1, 1000003, 1}};
  for (const Size& size : sizes) {
    for (int round = 0; round < size.rounds; ++round) {
      INFO(size.rows << " rows, vocab " << size.vocab << ", round " << round);
      const ChooseData data(random, size.rows, size.vocab);
      const int32_t fault = random.below(5) == 0 ? 3 : 0;
      const Chosen expected = chosen_by_ref(data, fault);
      const Chosen actual = chosen_by_gpu(data, fault);
      REQUIRE(first_difference(expected.first, actual.first) == "");
      REQUIRE(expected.second == actual.second);
    }
  }
}

TEST_CASE("CUDA's log-probabilities are made of the numbers of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(2);
  for (const int vocab : {1, 31, 1025, 4099, 60001}) {
    for (int kind = 0; kind < kLogitKinds; ++kind) {
      for (const int n_top : {0, 1, 5, 1024}) {
        if (n_top > vocab) continue;
        const LogprobData data(random, vocab, kind);
        constexpr int kRows = LogprobData::kRows;
        std::vector<LogprobSums> sums(kRows);
        std::vector<LogprobLogit> top(static_cast<size_t>(kRows * n_top));
        ref::logprobs(
            {data.logits.data(), data.ids.data(), sums.data(), top.data(), n_top, kRows, vocab});
        const OnDevice<float> device_logits(data.logits);
        const OnDevice<int32_t> device_ids(data.ids);
        const OnDevice<LogprobSums> device_sums(sums.size());
        const OnDevice<LogprobLogit> device_top(top.size());
        cuda::logprobs({device_logits.data(), device_ids.data(), device_sums.data(),
                        device_top.data(), n_top, kRows, vocab},
                       nullptr);
        finish();
        INFO("vocab " << vocab << ", kind " << kind << ", top " << n_top);
        REQUIRE(are_equal(device_sums.read(), sums));
        REQUIRE(in_order(device_top.read(), n_top) == in_order(top, n_top));
      }
    }
  }
}

}  // namespace
}  // namespace edgellm
