// The certified head on the GPU: its bounds, and its arg-max against the full head of ref.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <tuple>

#include "kernels/choice.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan/choose.h"
#include "kernels/cuda/plan/head.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/choose_data.h"
#include "tests/kernels/head_data.h"
#include "tests/kernels/on_device.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

// A head and its certified head on the device, and the memory of a certified_head call for `rows`
// rows.
struct CertifiedOnDevice {
  DenseData host;
  OnDevice<uint8_t> weights;
  OnDevice<int8_t> codes;
  OnDevice<CertifiedRow> row_bounds;
  OnDevice<float> normed, upper;
  OnDevice<int32_t> argmax, rescored, fault;
  OnDevice<int16_t> steps;
  OnDevice<HiddenBound> hidden;
  OnDevice<uint32_t> lower;
  OnDevice<int32_t> rescored_so_far, head_done;
  OnDevice<unsigned long long> best;
  OnDevice<float> group_lower, least;
  OnDevice<uint32_t> listed;
  DenseMatrix w;
  CertifiedHead certified;
  cuda::Workspace workspace;

  CertifiedOnDevice(DenseData head, size_t rows)
      : host(std::move(head)),
        weights(host.bytes),
        codes(static_cast<size_t>(host.matrix.rows) * CertifiedHead::pitch_of(host.matrix.cols)),
        row_bounds(static_cast<size_t>(host.matrix.rows)),
        normed(rows * static_cast<size_t>(host.matrix.cols)),
        upper(rows * static_cast<size_t>(host.matrix.rows)),
        argmax(rows),
        rescored(rows),
        fault(std::vector<int32_t>{0}),
        steps(rows * CertifiedHead::pitch_of(host.matrix.cols)),
        hidden(rows),
        lower(std::vector<uint32_t>(rows, 0)),
        rescored_so_far(std::vector<int32_t>(rows, 0)),
        head_done(std::vector<int32_t>(1, 0)),
        best(std::vector<unsigned long long>(rows, 0)),
        group_lower(rows * static_cast<size_t>(cuda::max_bound_groups(host.matrix.rows))),
        least(rows),
        listed(rows * static_cast<size_t>(cuda::listed_words(host.matrix.rows))),
        w{weights.data(), host.matrix.type, host.matrix.rows, host.matrix.cols},
        certified{codes.data(), row_bounds.data(), w.rows, w.cols} {
    workspace.best = best.data();
    workspace.head_done = head_done.data();
    workspace.steps = steps.data();
    workspace.hidden = hidden.data();
    workspace.lower = lower.data();
    workspace.rescored = rescored_so_far.data();
    workspace.group_lower = group_lower.data();
    workspace.least = least.data();
    workspace.listed = listed.data();
    cuda::build_certified_head(w, codes.data(), row_bounds.data(), nullptr);
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
    CertifiedHeadArgs args;
    args.head = head_args(x, gain, rows, row_list.size());
    args.head.argmax = argmax.data();
    args.head.banned = banned.empty() ? nullptr : device_banned.data();
    args.head.n_banned = static_cast<int>(banned.size());
    args.certified = certified;
    args.rescored = rescored.data();
    for (int i = 0; i < 2; ++i) cuda::certified_head(args, workspace, nullptr);
    finish();
    for (uint32_t value : lower.read()) REQUIRE(value == 0);
    for (unsigned long long value : best.read()) REQUIRE(value == 0);
    for (int32_t value : rescored_so_far.read()) REQUIRE(value == 0);
    REQUIRE(head_done.read()[0] == 0);
    return {argmax.read(), rescored.read(), normed.read(), fault.read()[0]};
  }

  // certified_choose: `argmax` has the ids, and `normed` the logits, NaN where none was computed.
  Result choose(const HiddenData& in, const ChooseData& rules) {
    const OnDevice<float> x(in.x), gain(in.gain);
    const OnDevice<int32_t> rows(rules.row_list), sequences(rules.sequences),
        positions(rules.positions);
    const OnDevice<ChoiceRule> device_rules(rules.rules);
    const OnDevice<uint16_t> marks(rules.marks);
    const OnDevice<LogitBias> biases(rules.biases);
    cuda_check(cudaMemset(fault.data(), 0, sizeof(int32_t)), "clear");
    CertifiedChooseArgs args;
    args.head = head_args(x, gain, rows, rules.row_list.size());
    args.certified = certified;
    args.choose = rules.args;
    args.choose.logits = nullptr;
    args.choose.row_list = rows.data();
    args.choose.places = {sequences.data(), positions.data()};
    args.choose.rules = device_rules.data();
    args.choose.marks = marks.data();
    args.choose.biases = biases.data();
    args.choose.ids = argmax.data();
    args.rescored = rescored.data();
    for (int i = 0; i < 2; ++i) cuda::certified_choose(args, workspace, nullptr);
    finish();
    std::vector<float> logits = upper.read();
    const std::vector<uint32_t> bits = listed.read();
    const size_t vocab = static_cast<size_t>(w.rows);
    for (size_t row = 0; row < rules.row_list.size(); ++row) {
      const uint32_t* of_row = &bits[row * static_cast<size_t>(cuda::listed_words(w.rows))];
      for (size_t id = 0; id < vocab; ++id) {
        if ((of_row[id / 32] >> id % 32 & 1) == 0) logits[row * vocab + id] = NAN;
      }
    }
    return {argmax.read(), rescored.read(), std::move(logits), fault.read()[0]};
  }

 private:
  HeadArgs head_args(const OnDevice<float>& x, const OnDevice<float>& gain,
                     const OnDevice<int32_t>& row_list, size_t rows) {
    HeadArgs head;
    head.x = x.data();
    head.row_list = row_list.data();
    head.gain = gain.data();
    head.eps = 1e-5f;
    head.w = w;
    head.normed = normed.data();
    head.logits = upper.data();
    head.rows = static_cast<int>(rows);
    head.layers = 6;
    head.fault = fault.data();
    return head;
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

// check_bounds() with the GPU's codes.
std::string check_int8_bounds(const CertifiedHead& certified, const float* h, const float* logits) {
  const auto code_of = [&](int row, int column) {
    return static_cast<const int8_t*>(
        certified
            .codes)[static_cast<size_t>(row) * certified.pitch() + static_cast<size_t>(column)];
  };
  return check_bounds(certified, code_of, 32767.0f, h, logits);
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
        CertifiedOnDevice device(make_head(random, vocab, dim, type, static_cast<HeadKind>(kind)),
                                 9);
        const std::vector<int8_t> codes = device.codes.read();
        const std::vector<CertifiedRow> row_bounds = device.row_bounds.read();
        const CertifiedHead certified{codes.data(), row_bounds.data(), vocab, dim};
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
            REQUIRE(check_int8_bounds(certified, h, logits) == "");
            if (expected.fault == 0) REQUIRE(actual.argmax[r] == expected.argmax[r]);
          }
        }
      }
    }
  }
}

// The steps of a normed row; zeros where a value is not finite.
std::vector<int64_t> steps_of(const float* h, int n) {
  std::vector<int64_t> steps(static_cast<size_t>(n), 0);
  if (!std::all_of(h, h + n, [](float value) { return std::isfinite(value); })) return steps;
  float amax = 0.0f;
  for (int i = 0; i < n; ++i) amax = std::max(amax, std::fabs(h[i]));
  const StepScale scale = step_scale(amax);
  for (int i = 0; i < n; ++i) {
    steps[static_cast<size_t>(i)] = static_cast<int64_t>(step_of(scale.scaled(h[i])));
  }
  return steps;
}

// What is wrong with the bounds that a call has left for its first rows: the upper ones must be
// those of the exact products to the bit, and as many rows rescored as reach the largest lower one.
std::string check_products(const CertifiedOnDevice& device, const CertifiedOnDevice::Result& result,
                           size_t rows, const std::vector<int32_t>& banned) {
  const std::vector<int8_t> codes = device.codes.read();
  const std::vector<CertifiedRow> row_bounds = device.row_bounds.read();
  const std::vector<HiddenBound> hidden = device.hidden.read();
  const std::vector<float> upper = device.upper.read();
  const size_t vocab = static_cast<size_t>(device.w.rows);
  const size_t dim = static_cast<size_t>(device.w.cols);
  for (size_t r = 0; r < rows; ++r) {
    const std::vector<int64_t> steps =
        steps_of(result.normed.data() + r * dim, device.host.matrix.cols);
    float largest_lower = -INFINITY;
    for (size_t v = 0; v < vocab; ++v) {
      int64_t product = 0;
      for (size_t i = 0; i < dim; ++i)
        product += codes[v * device.certified.pitch() + i] * steps[i];
      const LogitBounds bounds =
          logit_bounds(static_cast<float>(product), row_bounds[v], hidden[r]);
      const float actual = upper[r * vocab + v];
      if (std::isnan(bounds.upper) ? !std::isnan(actual)
                                   : float_to_bits(bounds.upper) != float_to_bits(actual)) {
        return "row " + std::to_string(r) + ", id " + std::to_string(v) + ": upper bound " +
               std::to_string(actual) + " instead of " + std::to_string(bounds.upper);
      }
      if (bounds.lower > largest_lower &&
          std::find(banned.begin(), banned.end(), static_cast<int32_t>(v)) == banned.end()) {
        largest_lower = bounds.lower;
      }
    }
    const auto candidates =
        std::count_if(upper.begin() + static_cast<std::ptrdiff_t>(r * vocab),
                      upper.begin() + static_cast<std::ptrdiff_t>((r + 1) * vocab),
                      [&](float value) { return !(value < largest_lower); });
    if (result.rescored[r] != candidates) {
      return "row " + std::to_string(r) + ": " + std::to_string(result.rescored[r]) +
             " rescored instead of " + std::to_string(candidates);
    }
  }
  return "";
}

std::vector<int32_t> first_rows(int rows) {
  std::vector<int32_t> list;
  for (int r = 0; r < rows; ++r) list.push_back(r);
  return list;
}

// From five rows on the tensor cores make the products. Their tiles are 8, 16, 32 and 64 rows by
// 128 ids, in stages of 128 columns.
TEST_CASE("CUDA: the bounds of many rows are those of the exact products", "[gpu]") {
  if (no_gpu()) return;
  Random random(35);
  int round = 0;
  for (const auto& [dim, vocab] :
       {std::pair{1, 1}, {31, 33}, {64, 128}, {65, 129}, {577, 4099}, {2560, 131}, {6912, 65}}) {
    for (const int rows : {4, 5, 8, 9, 16, 17, 31, 32, 33, 64, 70}) {
      const HeadKind kind = static_cast<HeadKind>(round % static_cast<int>(HeadKind::kCount));
      const int size = round / static_cast<int>(HeadKind::kCount) % kHiddenSizes;
      ++round;
      INFO("dim " << dim << ", vocab " << vocab << ", rows " << rows << ", kind "
                  << static_cast<int>(kind) << ", size " << size);
      CertifiedOnDevice device(make_head(random, vocab, dim, DenseType::kBF16, kind),
                               static_cast<size_t>(rows));
      const HiddenData in(random, rows, dim, size);
      std::vector<int32_t> banned;
      for (int b = random.below(4); b > 0; --b) banned.push_back(random.below(vocab));
      const HeadRun expected = run_ref(device.host.matrix, in, first_rows(rows), banned);
      const auto actual = device.run(in, first_rows(rows), banned);
      REQUIRE(actual.fault == expected.fault);
      if (expected.fault == 0) REQUIRE(actual.argmax == expected.argmax);
      REQUIRE(check_products(device, actual, static_cast<size_t>(rows), banned) == "");
      const std::vector<int8_t> codes = device.codes.read();
      const std::vector<CertifiedRow> row_bounds = device.row_bounds.read();
      const CertifiedHead certified{codes.data(), row_bounds.data(), vocab, dim};
      for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
        REQUIRE(check_int8_bounds(certified, expected.normed.data() + r * static_cast<size_t>(dim),
                                  expected.logits.data() + r * static_cast<size_t>(vocab)) == "");
      }
    }
  }
}

TEST_CASE("CUDA: the ids that the largest logits of many rows belong to are banned", "[gpu]") {
  if (no_gpu()) return;
  Random random(36);
  const int dim = 96;
  const int vocab = 300;
  const int rows = 40;
  CertifiedOnDevice device(make_head(random, vocab, dim, DenseType::kBF16, HeadKind::kPlain), rows);
  const HiddenData in(random, rows, dim, 0);
  std::vector<int32_t> banned;
  for (int round = 0; round < 3; ++round) {
    const HeadRun expected = run_ref(device.host.matrix, in, first_rows(rows), banned);
    const auto actual = device.run(in, first_rows(rows), banned);
    REQUIRE(actual.argmax == expected.argmax);
    REQUIRE(check_products(device, actual, rows, banned) == "");
    banned.insert(banned.end(), expected.argmax.begin(), expected.argmax.end());
  }
}

TEST_CASE("CUDA: steps and codes at their extremes", "[gpu]") {
  if (no_gpu()) return;
  Random random(37);
  const int dim = kMaxCertifiedCols;
  const int vocab = 131;
  DenseData head(random, vocab, dim, DenseType::kF32);
  for (int v = 0; v < vocab - 1; ++v) {
    for (int c = 0; c < dim; ++c) {
      const bool negative = v % 4 == 0 ? false : v % 4 == 1 ? true : random.below(2) == 0;
      if (v % 4 != 3) set(head, v, c, negative ? -1.0f : 1.0f);
    }
  }
  for (const int rows : {6, 20, 40}) {
    INFO("rows " << rows);
    HiddenData in(random, rows, dim, 0);
    // With the norm's 1 / sqrt(1 + 1e-5) just below 2.
    for (float& g : in.gain) g = 1.9999999f;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < dim; ++c) {
        const bool negative = r % 4 == 0 ? false : r % 4 == 1 ? true : random.below(2) == 0;
        // Of every fourth row most steps are -1, 0 and 1: the digits -1 and 255, 0 and 0, 0 and 1.
        const float size = r % 4 == 3 && c % 64 != 0 ? 3e-5f * random.uniform(0.0f, 1.0f) : 1.0f;
        in.x[static_cast<size_t>(r) * static_cast<size_t>(dim) + static_cast<size_t>(c)] =
            negative ? -size : size;
      }
    }
    CertifiedOnDevice device(head, static_cast<size_t>(rows));
    const HeadRun expected = run_ref(device.host.matrix, in, first_rows(rows), {});
    const auto actual = device.run(in, first_rows(rows), {});
    REQUIRE(steps_of(actual.normed.data(), dim)[7] == 32767);
    REQUIRE(steps_of(actual.normed.data() + dim, dim)[7] == -32767);
    REQUIRE(actual.fault == 0);
    REQUIRE(actual.argmax == expected.argmax);
    REQUIRE(check_products(device, actual, static_cast<size_t>(rows), {}) == "");
  }
}

TEST_CASE("CUDA: of many rows one that is not finite leaves the others alone", "[gpu]") {
  if (no_gpu()) return;
  Random random(38);
  const int dim = 200;
  const int vocab = 1000;
  for (const int rows : {7, 33}) {
    for (const bool in_head : {false, true}) {
      INFO("rows " << rows << ", " << (in_head ? "NaN in the head" : "infinity in a hidden state"));
      DenseData head = make_head(random, vocab, dim, DenseType::kBF16, HeadKind::kPlain);
      HiddenData in(random, rows, dim, 0);
      if (in_head) {
        set(head, 777, 3, std::nanf(""));
      } else {
        in.x[5 * static_cast<size_t>(dim) + 17] = std::numeric_limits<float>::infinity();
      }
      CertifiedOnDevice device(std::move(head), static_cast<size_t>(rows));
      const auto actual = device.run(in, first_rows(rows), {});
      REQUIRE(actual.fault == 7);
      REQUIRE(check_products(device, actual, static_cast<size_t>(rows), {}) == "");
      if (in_head) continue;
      const HeadRun expected = run_ref(device.host.matrix, in, first_rows(rows), {});
      for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
        if (r != 5) REQUIRE(actual.argmax[r] == expected.argmax[r]);
      }
    }
  }
}

TEST_CASE("CUDA: a large vocabulary is rescored in few rows, the same ids", "[gpu]") {
  if (no_gpu()) return;
  Random random(32);
  for (const auto& [dim, vocab] : {std::pair{576, 49152}, {2560, 20001}, {1024, 40000}}) {
    CertifiedOnDevice device(make_head(random, vocab, dim, DenseType::kBF16, HeadKind::kPlain), 8);
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
  CertifiedOnDevice device(std::move(head), 1);
  const HeadRun expected = run_ref(device.host.matrix, in, {0}, {});
  REQUIRE(expected.fault == 7);
  REQUIRE(device.run(in, {0}, {}).fault == 7);
  // A ban does not hide it from a choice by rules.
  ChooseData rules(random, 1, vocab);
  rules.row_list = {0};
  for (ChoiceRule& rule : rules.rules) {
    rule = {.inverse_temperature = 1, .samples = 1, .top_k = 40, .marks = 1};
  }
  for (size_t s = 0; s < rules.rules.size(); ++s) {
    for (const size_t id : {17, 999, 4321}) {
      rules.marks[s * static_cast<size_t>(vocab) + id] = kMarkBanned;
    }
  }
  REQUIRE(device.choose(in, rules).fault == 7);
  // The counters are as before: the next call is right.
  const HiddenData good(random, 1, dim, 0);
  REQUIRE(device.run(good, {0}, {999, 4321, 17}).argmax ==
          run_ref(device.host.matrix, good, {0}, {999, 4321, 17}).argmax);
}

TEST_CASE("CUDA: every id banned leaves none", "[gpu]") {
  if (no_gpu()) return;
  Random random(34);
  CertifiedOnDevice device(make_head(random, 3, 64, DenseType::kF16, HeadKind::kPlain), 1);
  const HiddenData in(random, 1, 64, 0);
  REQUIRE(device.run(in, {0}, {0, 1, 2}).argmax[0] == -1);
  REQUIRE(device.run(in, {0}, {0, 2}).argmax[0] == 1);
}

TEST_CASE("CUDA: the certified head chooses by rules what ref chooses from all logits", "[gpu]") {
  if (no_gpu()) return;
  Random random(46);
  std::map<int32_t, int> chosen;
  // Rows that list up to 1,024 ids, up to 4,096, and more: each has its own way to choose.
  int listed[3] = {};
  for (DenseType type : {DenseType::kF32, DenseType::kF16, DenseType::kBF16}) {
    for (const auto& [dim, vocab, most_rows] : {std::tuple{1, 1, 3},
                                                {4, 3, 9},
                                                {36, 131, 70},
                                                {63, 1025, 33},
                                                {576, 2048, 40},
                                                {641, 130, 8},
                                                {2560, 1500, 5},
                                                {3200, 50, 70},
                                                {17, 140001, 6}}) {
      for (int kind = 0; kind < static_cast<int>(HeadKind::kCount); ++kind) {
        CertifiedOnDevice device(make_head(random, vocab, dim, type, static_cast<HeadKind>(kind)),
                                 static_cast<size_t>(most_rows));
        for (const int rows : {1, 2, std::min(most_rows, 7), most_rows}) {
          if (rows > most_rows) continue;
          ChooseData rules(random, rows, vocab);
          for (ChoiceRule& rule : rules.rules) {
            if (most_kept(rule) == 0) rule.top_k = 1 + random.below(60);
          }
          const HiddenData in(random, rows + 3, dim, random.below(kHiddenSizes));
          INFO("type " << static_cast<int>(type) << ", dim " << dim << ", vocab " << vocab
                       << ", kind " << kind << ", " << rows << " rows");
          const HeadRun expected = run_ref(device.host.matrix, in, rules.row_list, {});
          const CertifiedOnDevice::Result actual = device.choose(in, rules);
          REQUIRE(actual.fault == expected.fault);
          if (expected.fault != 0) continue;
          std::vector<int32_t> ids(static_cast<size_t>(rows));
          ChooseArgs choose = rules.args;
          choose.logits = expected.logits.data();
          choose.ids = ids.data();
          ref::choose(choose);
          for (const int32_t id : ids) ++chosen[id];
          for (size_t row = 0; row < ids.size(); ++row) {
            REQUIRE(actual.argmax[row] == ids[row]);
            int computed = 0;
            for (size_t v = 0; v < static_cast<size_t>(vocab); ++v) {
              const size_t i = row * static_cast<size_t>(vocab) + v;
              if (std::isnan(actual.normed[i])) continue;
              ++computed;
              REQUIRE(float_to_bits(actual.normed[i]) == float_to_bits(expected.logits[i]));
            }
            REQUIRE(actual.rescored[row] == computed);
            ++listed[computed <= 1024 ? 0 : computed <= 4096 ? 1 : 2];
          }
        }
      }
    }
  }
  CHECK(chosen[-1] > 0);       // all were banned
  CHECK(chosen.size() > 100);  // and the draw was not always the arg-max
  for (const int rows : listed) CHECK(rows > 0);
}

TEST_CASE("CUDA: choices among few ids compute few rows of the head", "[gpu]") {
  if (no_gpu()) return;
  Random random(47);
  const int vocab = 49152;
  const int dim = 576;
  const int rows = 40;
  CertifiedOnDevice device(make_head(random, vocab, dim, DenseType::kBF16, HeadKind::kPlain), rows);
  for (const int n : {1, 3, 8, rows}) {
    ChooseData rules(random, n, vocab);
    for (ChoiceRule& rule : rules.rules) {
      rule = {.inverse_temperature = 1, .samples = 1, .top_k = 50};
    }
    HiddenData in(random, n + 3, dim, 0);
    for (float& value : in.x) value = random.normal();  // without rows of zeros, which all tie
    const CertifiedOnDevice::Result actual = device.choose(in, rules);
    REQUIRE(actual.fault == 0);
    for (int row = 0; row < n; ++row) {
      INFO(n << " rows, row " << row);
      CHECK(actual.rescored[static_cast<size_t>(row)] >= 50);
      CHECK(actual.rescored[static_cast<size_t>(row)] < 600);
    }
  }
}

}  // namespace
}  // namespace edgellm
