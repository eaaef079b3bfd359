// The certified head on the GPU: its bounds, and its arg-max against the full head of ref.
#include <catch2/catch.hpp>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/head_data.h"
#include "tests/kernels/on_device.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

// A head with its copy on the device, and the memory of a greedy_head call for `rows` rows.
struct GreedyOnDevice {
  DenseData host;
  OnDevice<uint8_t> weights;
  OnDevice<int8_t> codes;
  OnDevice<CompressedRow> row_bounds;
  OnDevice<float> normed, upper;
  OnDevice<int32_t> argmax, rescored, fault;
  OnDevice<int16_t> steps;
  OnDevice<HiddenBound> hidden;
  OnDevice<uint32_t> lower;
  OnDevice<int32_t> rescored_so_far, head_done;
  OnDevice<unsigned long long> best;
  DenseMatrix w;
  CompressedHead copy;
  cuda::Workspace workspace;

  GreedyOnDevice(DenseData head, size_t rows)
      : host(std::move(head)),
        weights(host.bytes),
        codes(static_cast<size_t>(host.matrix.rows) * CompressedHead::pitch_of(host.matrix.cols)),
        row_bounds(static_cast<size_t>(host.matrix.rows)),
        normed(rows * static_cast<size_t>(host.matrix.cols)),
        upper(rows * static_cast<size_t>(host.matrix.rows)),
        argmax(rows),
        rescored(rows),
        fault(std::vector<int32_t>{0}),
        steps(rows * CompressedHead::pitch_of(host.matrix.cols)),
        hidden(rows),
        lower(std::vector<uint32_t>(rows, 0)),
        rescored_so_far(std::vector<int32_t>(rows, 0)),
        head_done(std::vector<int32_t>(1, 0)),
        best(std::vector<unsigned long long>(rows, 0)),
        w{weights.data(), host.matrix.type, host.matrix.rows, host.matrix.cols},
        copy{codes.data(), row_bounds.data(), w.rows, w.cols} {
    workspace.best = best.data();
    workspace.head_done = head_done.data();
    workspace.steps = steps.data();
    workspace.hidden = hidden.data();
    workspace.lower = lower.data();
    workspace.rescored = rescored_so_far.data();
    cuda::compress_head(w, codes.data(), row_bounds.data(), nullptr);
    finish();
  }

  struct Result {
    std::vector<int32_t> argmax, rescored;
    std::vector<float> normed;
    int32_t fault;
  };
  // Twice: counters must come back to zero.
  Result run(const HiddenData& in, const std::vector<int32_t>& row_list,
             const std::vector<int32_t>& banned) {
    const OnDevice<float> x(in.x), gain(in.gain);
    const OnDevice<int32_t> rows(row_list), device_banned(banned);
    cuda_check(cudaMemset(fault.data(), 0, sizeof(int32_t)), "clear");
    GreedyHeadArgs args;
    args.head = {x.data(),
                 rows.data(),
                 gain.data(),
                 1e-5f,
                 w,
                 normed.data(),
                 upper.data(),
                 argmax.data(),
                 banned.empty() ? nullptr : device_banned.data(),
                 static_cast<int>(banned.size()),
                 static_cast<int>(row_list.size()),
                 6,
                 fault.data()};
    args.copy = copy;
    args.rescored = rescored.data();
    for (int i = 0; i < 2; ++i) cuda::greedy_head(args, workspace, nullptr);
    finish();
    for (uint32_t value : lower.read()) REQUIRE(value == 0);
    for (unsigned long long value : best.read()) REQUIRE(value == 0);
    for (int32_t value : rescored_so_far.read()) REQUIRE(value == 0);
    REQUIRE(head_done.read()[0] == 0);
    return {argmax.read(), rescored.read(), normed.read(), fault.read()[0]};
  }
};

HeadRun run_ref(const DenseMatrix& w, const HiddenData& in, const std::vector<int32_t>& row_list,
                const std::vector<int32_t>& banned) {
  HeadRun run(row_list.size(), w);
  ref::head({in.x.data(), row_list.data(), in.gain.data(), 1e-5f, w, run.normed.data(),
             run.logits.data(), run.argmax.data(), banned.data(), static_cast<int>(banned.size()),
             static_cast<int>(row_list.size()), 6, &run.fault});
  return run;
}

TEST_CASE("CUDA: the certified head's bounds hold and it chooses what the full head chooses",
          "[gpu]") {
  if (no_gpu()) return;
  Random random(31);
  for (DenseType type : {DenseType::kF32, DenseType::kF16, DenseType::kBF16}) {
    for (const auto& [dim, vocab] : {std::pair{1, 1},
                                     {4, 3},
                                     {36, 131},
                                     {63, 1025},
                                     {576, 300},
                                     {641, 130},
                                     {1283, 77},
                                     {2560, 260},
                                     {3200, 50},
                                     {9001, 33}}) {
      for (int kind = 0; kind < static_cast<int>(HeadKind::kCount); ++kind) {
        // For tests of several rows the scratch memory is larger than a call needs.
        GreedyOnDevice device(make_head(random, vocab, dim, type, static_cast<HeadKind>(kind)), 9);
        const std::vector<int8_t> codes = device.codes.read();
        const std::vector<CompressedRow> row_bounds = device.row_bounds.read();
        const CompressedHead copy{codes.data(), row_bounds.data(), vocab, dim};
        for (int size = 0; size < kHiddenSizes; ++size) {
          const int rows = 1 + random.below(9);
          INFO("dim " << dim << ", vocab " << vocab << ", kind " << kind << ", size " << size
                      << ", rows " << rows);
          const HiddenData in(random, 9, dim, size);
          std::vector<int32_t> row_list, banned;
          for (int r = 0; r < rows; ++r) row_list.push_back(8 - r);
          for (int b = random.below(3); b > 0; --b) banned.push_back(random.below(vocab));
          const HeadRun expected = run_ref(device.host.matrix, in, row_list, banned);
          const auto actual = device.run(in, row_list, banned);
          REQUIRE(actual.fault == expected.fault);
          for (size_t r = 0; r < row_list.size(); ++r) {
            const float* h = expected.normed.data() + r * static_cast<size_t>(dim);
            const float* logits = expected.logits.data() + r * static_cast<size_t>(vocab);
            REQUIRE(std::memcmp(h, actual.normed.data() + r * static_cast<size_t>(dim),
                                static_cast<size_t>(dim) * 4) == 0);
            REQUIRE(check_bounds(copy, h, logits) == "");
            if (expected.fault == 0) REQUIRE(actual.argmax[r] == expected.argmax[r]);
          }
        }
      }
    }
  }
}

TEST_CASE("CUDA: a large vocabulary is rescored in few rows, the same ids", "[gpu]") {
  if (no_gpu()) return;
  Random random(32);
  for (const auto& [dim, vocab] : {std::pair{576, 49152}, {2560, 20001}, {1024, 40000}}) {
    GreedyOnDevice device(make_head(random, vocab, dim, DenseType::kBF16, HeadKind::kPlain), 8);
    for (int rows : {1, 2, 3, 7, 8}) {
      INFO("dim " << dim << ", vocab " << vocab << ", rows " << rows);
      HiddenData in(random, rows, dim, 0);
      in.x = random.normals(in.x.size());
      std::vector<int32_t> row_list;
      for (int r = 0; r < rows; ++r) row_list.push_back(r);
      const HeadRun expected = run_ref(device.host.matrix, in, row_list, {});
      const auto actual = device.run(in, row_list, {});
      REQUIRE(actual.fault == 0);
      for (size_t r = 0; r < row_list.size(); ++r) {
        REQUIRE(actual.argmax[r] == expected.argmax[r]);
        REQUIRE(actual.rescored[r] >= 1);
        REQUIRE(actual.rescored[r] <= 200);
      }
    }
  }
}

TEST_CASE("CUDA: a logit that is not finite is found by the certified head, too", "[gpu]") {
  if (no_gpu()) return;
  Random random(33);
  const int dim = 100;
  const int vocab = 5000;
  DenseData head = make_head(random, vocab, dim, DenseType::kBF16, HeadKind::kPlain);
  HiddenData in(random, 1, dim, 0);
  const float infinity = std::numeric_limits<float>::infinity();
  SECTION("minus infinity among the weights") { set(head, 4321, 7, -infinity); }
  SECTION("NaN among the weights") { set(head, 17, 99, std::nanf("")); }
  SECTION("a row that overflows downwards") {
    for (int c = 0; c < dim; ++c)
      set(head, 999, c, in.x[static_cast<size_t>(c)] > 0 ? -3e38f : 3e38f);
    for (float& g : in.gain) g = 2.0f;
  }
  SECTION("infinity in the hidden state") { in.x[5] = infinity; }
  SECTION("NaN in the gain") { in.gain[99] = std::nanf(""); }
  GreedyOnDevice device(std::move(head), 1);
  const HeadRun expected = run_ref(device.host.matrix, in, {0}, {});
  REQUIRE(expected.fault == 7);
  REQUIRE(device.run(in, {0}, {}).fault == 7);
  // The counters are as before: the next call is right.
  const HiddenData good(random, 1, dim, 0);
  REQUIRE(device.run(good, {0}, {999, 4321, 17}).argmax ==
          run_ref(device.host.matrix, good, {0}, {999, 4321, 17}).argmax);
}

TEST_CASE("CUDA: every id banned leaves none", "[gpu]") {
  if (no_gpu()) return;
  Random random(34);
  GreedyOnDevice device(make_head(random, 3, 64, DenseType::kF16, HeadKind::kPlain), 1);
  const HiddenData in(random, 1, 64, 0);
  REQUIRE(device.run(in, {0}, {0, 1, 2}).argmax[0] == -1);
  REQUIRE(device.run(in, {0}, {0, 2}).argmax[0] == 1);
}

}  // namespace
}  // namespace edgellm
