// The certified head on the CPU: its bounds, and its arg-max against the full head.
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <numeric>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/head_codes.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/primitives.h"
#include "kernels/integer_attention.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/choose_data.h"
#include "tests/kernels/head_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

// A certified head, built by the CPU.
struct BuiltHead {
  std::vector<uint8_t> codes;
  std::vector<CertifiedRow> row_bounds;
  CertifiedHead view;

  BuiltHead(const DenseMatrix& w, cpu::Pool& pool)
      : codes(static_cast<size_t>(w.rows) * cpu::head_row_bytes(w.cols), uint8_t{99}),
        row_bounds(static_cast<size_t>(w.rows)),
        view{codes.data(), row_bounds.data(), w.rows, w.cols} {
    cpu::build_certified_head(w, codes.data(), row_bounds.data(), pool);
  }

  int code(int row, int column) const {
    const uint8_t* codes_of_row =
        codes.data() + static_cast<size_t>(row) * cpu::head_row_bytes(view.cols);
    return cpu::head_code(codes_of_row + column / cpu::kHeadBlockColumns * cpu::kHeadBlockBytes,
                          column % cpu::kHeadBlockColumns);
  }
  std::string check(const float* normed, const float* logits) const {
    return check_bounds(
        view, [&](int row, int column) { return code(row, column); }, cpu::kMaxHeadStep, normed,
        logits);
  }
};

struct Fixture {
  std::vector<std::unique_ptr<cpu::Pool>> pools;
  Fixture() {
    for (const cpu::Primitives* isa : cpu::usable_isas()) {
      for (int threads : {1, 3}) pools.push_back(std::make_unique<cpu::Pool>(threads, *isa));
    }
  }
  cpu::Pool& fastest() { return *pools[pools.size() - 2]; }  // one thread
};

HeadArgs head_args(const DenseMatrix& w, const HiddenData& in, const std::vector<int32_t>& row_list,
                   const std::vector<int32_t>& banned, HeadRun& run) {
  return {in.x.data(),
          row_list.data(),
          in.gain.data(),
          1e-5f,
          w,
          run.normed.data(),
          run.logits.data(),
          run.argmax.data(),
          banned.data(),
          static_cast<int>(banned.size()),
          static_cast<int>(row_list.size()),
          6,
          &run.fault};
}

TEST_CASE("the certified head's bounds hold and it chooses what the full head chooses") {
  Fixture f;
  Random random(41);
  for (DenseType type : {DenseType::kF32, DenseType::kF16, DenseType::kBF16}) {
    for (const auto& [dim, vocab] :
         {std::pair{1, 1}, {4, 3}, {36, 131}, {63, 257}, {576, 120}, {1283, 77}, {9001, 11}}) {
      for (int kind = 0; kind < static_cast<int>(HeadKind::kCount); ++kind) {
        const DenseData head = make_head(random, vocab, dim, type, static_cast<HeadKind>(kind));
        const BuiltHead built(head.matrix, *f.pools.back());
        for (int size = 0; size < kHiddenSizes; ++size) {
          const int rows = 1 + random.below(9);
          const HiddenData in(random, 7, dim, size);
          std::vector<int32_t> row_list, banned;
          for (int r = 0; r < rows; ++r) row_list.push_back(random.below(7));
          for (int b = random.below(3); b > 0; --b) banned.push_back(random.below(vocab));
          HeadRun expected(row_list.size(), head.matrix);
          ref::head(head_args(head.matrix, in, row_list, banned, expected));
          INFO("type " << static_cast<int>(type) << ", dim " << dim << ", vocab " << vocab
                       << ", kind " << kind << ", size " << size << ", rows " << rows);
          for (size_t r = 0; r < row_list.size(); ++r) {
            REQUIRE(built.check(expected.normed.data() + r * static_cast<size_t>(dim),
                                expected.logits.data() + r * static_cast<size_t>(vocab)) == "");
          }
          for (const auto& pool : f.pools) {
            INFO(pool->isa().name << ", " << pool->threads() << " threads");
            HeadRun run(row_list.size(), head.matrix);
            Poisoned<float> upper(run.logits.size());
            Poisoned<float> normed(run.normed.size());
            Poisoned<int32_t> argmax(row_list.size());
            Poisoned<int32_t> rescored(row_list.size());
            HeadArgs args = head_args(head.matrix, in, row_list, banned, run);
            args.logits = upper.data();
            args.normed = normed.data();
            args.argmax = argmax.data();
            cpu::certified_head({args, built.view, rescored.data()}, *pool);
            REQUIRE((upper.guards_intact() && normed.guards_intact() && argmax.guards_intact() &&
                     rescored.guards_intact()));
            REQUIRE(first_difference(expected.normed, normed.values()) == "");
            REQUIRE(run.fault == expected.fault);
            for (int32_t n : rescored.values()) REQUIRE((n >= 1 && n <= vocab));
            if (expected.fault == 0) {
              REQUIRE(first_difference(expected.argmax, argmax.values()) == "");
            }
          }
        }
      }
    }
  }
}

TEST_CASE("every term of the bound is needed") {
  Fixture f;
  cpu::Pool& pool = f.fastest();
  Random random(45);
  const int dim = 1024;
  const int vocab = 200;
  DenseData head = make_head(random, vocab, dim, DenseType::kF32, HeadKind::kPlain);
  std::vector<float> h = random.normals(static_cast<size_t>(dim));
  // Rows that their codes hold exactly, steps that hold h exactly.
  const auto exact_rows = [&](float unit) {
    for (int v = 0; v < vocab; ++v) {
      for (int c = 0; c < dim; ++c) {
        set(head, v, c, unit * static_cast<float>(c == 0 ? 31 : random.below(63) - 31));
      }
    }
  };
  const auto exact_steps = [&](float unit) {
    for (float& value : h) value = unit * static_cast<float>(random.below(65279) - 32639);
  };
  float CertifiedRow::*without = nullptr;  // the norm that the test takes away
  SECTION("the error of the codes") { without = &CertifiedRow::error; }
  SECTION("the error of the steps") {
    exact_rows(1.0f);
    without = &CertifiedRow::coded;
  }
  SECTION("the rounding of canonical_sum") {
    // The sums of odd and of even columns are large, so that they are rounded, and almost cancel.
    for (float& value : h) value = static_cast<float>(32639 - random.below(1000));
    for (int v = 0; v < vocab; ++v) {
      for (int c = 0; c < dim; ++c) {
        const int code = c < 2 ? 31 : 31 - random.below(2);
        set(head, v, c, static_cast<float>(c % 2 == 0 ? code : -code));
      }
    }
    without = &CertifiedRow::norm;
  }
  SECTION("subnormal roundings") {  // seen to need HiddenBound::floor
    exact_rows(0x1p-20f);
    exact_steps(0x1p-140f);
  }
  std::vector<float> logits(static_cast<size_t>(vocab));
  REQUIRE(pool.isa().dense_rows(head.matrix, 0, vocab, h.data(), 1, logits.data(),
                                static_cast<size_t>(vocab)));
  BuiltHead built(head.matrix, pool);
  REQUIRE(built.check(h.data(), logits.data()) == "");
  if (without == nullptr) return;
  for (CertifiedRow& row : built.row_bounds) row.*without = 0.0f;
  REQUIRE(built.check(h.data(), logits.data()) != "");
}

TEST_CASE("the codes of the head come back from their blocks") {
  Random random(47);
  for (int round = 0; round < 100; ++round) {
    int8_t codes[cpu::kHeadBlockColumns];
    for (int8_t& code : codes) code = static_cast<int8_t>(random.below(63) - cpu::kMaxHeadCode);
    uint8_t block[cpu::kHeadBlockBytes];
    cpu::pack_head_block(codes, block);
    for (int c = 0; c < cpu::kHeadBlockColumns; ++c) {
      REQUIRE(cpu::head_code(block, c) == codes[c]);
    }
  }
}

TEST_CASE("the products of the head's codes and steps are exact, also of the largest") {
  Fixture f;
  Random random(42);
  constexpr int kRows = 5;
  constexpr int kTokens = 7;  // a tile of four, and others
  for (int dim : {1, 64, 577, 4095, kMaxCertifiedCols}) {
    const size_t pitch = CertifiedHead::pitch_of(dim);
    std::vector<int8_t> codes(kRows * pitch);
    std::vector<int32_t> steps(kTokens * pitch);
    for (const bool largest : {true, false}) {
      for (const bool random_signs : {false, true}) {
        const auto value = [&](int most) {
          const int magnitude = largest ? most : random.below(most + 1);
          return random_signs && random.below(2) == 0 ? -magnitude : magnitude;
        };
        for (int8_t& code : codes) code = static_cast<int8_t>(value(cpu::kMaxHeadCode));
        for (int32_t& step : steps) step = value(static_cast<int>(cpu::kMaxHeadStep));
        std::vector<uint8_t> packed(kRows * cpu::head_row_bytes(dim));
        for (size_t b = 0; b < codes.size() / cpu::kHeadBlockColumns; ++b) {
          cpu::pack_head_block(codes.data() + b * cpu::kHeadBlockColumns,
                               packed.data() + b * cpu::kHeadBlockBytes);
        }
        std::vector<int8_t> digits;
        std::vector<int32_t> sums(kTokens, 0);
        for (size_t t = 0; t < kTokens; ++t) {
          for (const bool high : {true, false}) {
            for (size_t c = 0; c < pitch; ++c) {
              const int step = steps[t * pitch + c];
              const Digits of_step = digits_of(step);
              digits.push_back(static_cast<int8_t>(high ? of_step.high : of_step.low));
              if (high) sums[t] += step;
            }
          }
        }
        for (const auto& pool : f.pools) {
          for (const int tokens : {1, 2, 3, 4, kTokens}) {
            for (const int begin : {0, 1}) {
              constexpr size_t kStride = kRows + 1;  // one more than are written
              std::vector<float> products(kTokens * kStride, -1.0f);
              pool->isa().certified_products({packed.data(), nullptr, kRows, dim}, begin, kRows,
                                             {digits.data(), sums.data()}, tokens, products.data(),
                                             kStride);
              for (size_t t = 0; t < kTokens; ++t) {
                for (size_t i = 0; i < kStride; ++i) {
                  const size_t row = i + static_cast<size_t>(begin);
                  int64_t expected = 0;
                  for (size_t c = 0; row < kRows && c < pitch; ++c) {
                    expected += int64_t{codes[row * pitch + c]} * steps[t * pitch + c];
                  }
                  INFO(pool->isa().name << ", dim " << dim << ", " << tokens << " rows of steps");
                  const bool written = static_cast<int>(t) < tokens && row < kRows;
                  REQUIRE(products[t * kStride + i] ==
                          (written ? static_cast<float>(expected) : -1.0f));
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a logit that is not finite is found by the certified head, too") {
  Fixture f;
  Random random(43);
  const int dim = 100;
  const int vocab = 500;
  const float infinity = std::numeric_limits<float>::infinity();
  DenseData head = make_head(random, vocab, dim, DenseType::kBF16, HeadKind::kPlain);
  HiddenData in(random, 1, dim, 0);
  SECTION("minus infinity among the weights") { set(head, 321, 7, -infinity); }
  SECTION("NaN among the weights") { set(head, 17, 99, std::nanf("")); }
  SECTION("a row that overflows downwards") {
    for (int c = 0; c < dim; ++c) {
      set(head, 99, c, in.x[static_cast<size_t>(c)] > 0 ? -3e38f : 3e38f);
    }
    in.gain.assign(in.gain.size(), 2.0f);
  }
  SECTION("infinity in the hidden state") { in.x[5] = infinity; }
  SECTION("NaN in the gain") { in.gain[99] = std::nanf(""); }
  HeadRun expected(1, head.matrix);
  ref::head(head_args(head.matrix, in, {0}, {}, expected));
  REQUIRE(expected.fault == 7);
  for (const auto& pool : f.pools) {
    const BuiltHead built(head.matrix, *pool);
    HeadRun run(1, head.matrix);
    int32_t rescored = 0;
    // Banning the row does not hide it.
    const std::vector<int32_t> row_list = {0}, banned = {17, 99, 321};
    cpu::certified_head({head_args(head.matrix, in, row_list, banned, run), built.view, &rescored},
                        *pool);
    REQUIRE(run.fault == 7);

    HeadRun chosen(1, head.matrix);
    HeadArgs args = head_args(head.matrix, in, row_list, {}, chosen);
    args.argmax = nullptr;
    const ChoiceRule rule{.inverse_temperature = 1, .samples = 1, .top_k = 40};
    const int32_t place = 0;
    int32_t id = 0;
    ChooseArgs choose;
    choose.row_list = row_list.data();
    choose.places = {&place, &place};
    choose.rules = &rule;
    choose.ids = &id;
    choose.rows = 1;
    choose.vocab = vocab;
    cpu::certified_choose({args, built.view, choose, &rescored}, *pool);
    REQUIRE(chosen.fault == 7);
    REQUIRE(id == -1);
  }
}

TEST_CASE("the certified head chooses by rules what ref chooses from all logits") {
  Fixture f;
  Random random(46);
  std::map<int32_t, int> chosen;
  int by_weight = 0;
  for (const auto& [dim, vocab] :
       {std::pair{1, 1}, {4, 3}, {36, 131}, {63, 257}, {100, 2048}, {576, 120}}) {
    for (int kind = 0; kind < static_cast<int>(HeadKind::kCount); ++kind) {
      const DenseData head =
          make_head(random, vocab, dim, DenseType::kBF16, static_cast<HeadKind>(kind));
      const BuiltHead built(head.matrix, *f.pools.back());
      for (int round = 0; round < 8; ++round) {
        const int rows = 1 + random.below(6);
        ChooseData rules(random, rows, vocab);
        for (ChoiceRule& rule : rules.rules) {
          if (most_kept(rule) == 0 && random.below(2) == 0) {
            // Shares of the largest weight from 2^-10 to 1, and one unit more or less.
            rule.top_p = 0;
            rule.min_weight = kMostWeight >> random.below(11);
            rule.min_weight -= rule.min_weight > kMostWeight >> 10 ? random.below(2) : 0;
          } else if (most_kept(rule) == 0) {
            rule.top_k = 1 + random.below(60);
          }
          by_weight += keeps_by_weight(rule) ? 1 : 0;
        }
        const HiddenData in(random, rows + 3, dim, round % kHiddenSizes);
        HeadRun expected(static_cast<size_t>(rows), head.matrix);
        HeadArgs args = head_args(head.matrix, in, rules.row_list, {}, expected);
        args.argmax = nullptr;
        ref::head(args);
        if (expected.fault != 0) continue;
        std::vector<int32_t> ids(static_cast<size_t>(rows));
        ChooseArgs choose = rules.args;
        choose.logits = expected.logits.data();
        choose.ids = ids.data();
        ref::choose(choose);
        for (const int32_t id : ids) ++chosen[id];
        for (const auto& pool : f.pools) {
          INFO(pool->isa().name << ", " << pool->threads() << " threads, dim " << dim << ", vocab "
                                << vocab << ", kind " << kind << ", round " << round);
          HeadRun run(static_cast<size_t>(rows), head.matrix);
          Poisoned<float> scratch(run.logits.size());
          Poisoned<int32_t> actual(ids.size());
          Poisoned<int32_t> rescored(ids.size());
          HeadArgs certified = head_args(head.matrix, in, rules.row_list, {}, run);
          certified.argmax = nullptr;
          certified.logits = scratch.data();
          ChooseArgs few = rules.args;
          few.logits = nullptr;
          few.ids = actual.data();
          cpu::certified_choose({certified, built.view, few, rescored.data()}, *pool);
          REQUIRE(run.fault == 0);
          REQUIRE(first_difference(ids, actual.values()) == "");
          REQUIRE((scratch.guards_intact() && actual.guards_intact() && rescored.guards_intact()));
        }
      }
    }
  }
  CHECK(by_weight > 100);
  CHECK(chosen[-1] > 0);       // all were banned
  CHECK(chosen.size() > 100);  // and the draw was not always the arg-max
}

TEST_CASE("the certified head leaves out only ids with less than a least weight") {
  Fixture f;
  Random random(48);
  const int dim = 24;  // few: the bounds are narrow against the logits
  const int vocab = 2048;
  const int rows = 30;
  std::vector<int32_t> row_list(rows), positions(rows), ids(rows);
  std::iota(row_list.begin(), row_list.end(), 0);
  for (const int shift : {1, 3, 10}) {
    const DenseData head = make_head(random, vocab, dim, DenseType::kBF16, HeadKind::kPlain);
    const BuiltHead built(head.matrix, *f.pools.back());
    HiddenData in(random, rows, dim, 0);
    in.x = random.normals(in.x.size());
    HeadRun expected(rows, head.matrix);
    HeadArgs args = head_args(head.matrix, in, row_list, {}, expected);
    args.argmax = nullptr;
    ref::head(args);
    std::vector<ChoiceRule> rules(rows);
    for (int row = 0; row < rows; ++row) {
      // Ids down to 2.5 standard deviations below the largest are kept: a fifth of them.
      const float* logits = expected.logits.data() + row * vocab;
      const float deviation = std::sqrt(std::inner_product(logits, logits + vocab, logits, 0.0f) /
                                        static_cast<float>(vocab));
      rules[static_cast<size_t>(row)] = {
          .seed = random.bits(),
          .min_weight = kMostWeight >> shift,
          .inverse_temperature = static_cast<float>(shift) * 0.693f / (2.5f * deviation),
          .samples = 1};
    }
    ChooseArgs choose;
    choose.logits = expected.logits.data();
    choose.row_list = row_list.data();
    choose.places = {row_list.data(), positions.data()};
    choose.rules = rules.data();
    choose.ids = ids.data();
    choose.rows = rows;
    choose.vocab = vocab;
    ref::choose(choose);
    for (const auto& pool : f.pools) {
      INFO(pool->isa().name << ", " << pool->threads() << " threads, a share of 2^-" << shift);
      HeadRun run(rows, head.matrix);
      HeadArgs certified = head_args(head.matrix, in, row_list, {}, run);
      certified.argmax = nullptr;
      std::vector<int32_t> actual(rows), rescored(rows);
      choose.ids = actual.data();
      cpu::certified_choose({certified, built.view, choose, rescored.data()}, *pool);
      REQUIRE(first_difference(ids, actual) == "");
      for (const int32_t n : rescored) {
        CAPTURE(n);
        REQUIRE((n > vocab / 100 && n < vocab * 2 / 3));
      }
    }
  }
}

TEST_CASE("20,000 random hidden states: certified equals full, few rows are rescored") {
  Fixture f;
  Random random(44);
  cpu::Pool& pool = f.fastest();
  const int rows = 100;
  int64_t rescored_rows = 0;
  const std::pair<int, int> shapes[] = {{64, 1000}, {100, 2048}};
  std::vector<int32_t> row_list;
  for (int r = 0; r < rows; ++r) row_list.push_back(r);
  for (const auto& [dim, vocab] : shapes) {
    const DenseData head = make_head(random, vocab, dim, DenseType::kBF16, HeadKind::kPlain);
    const BuiltHead built(head.matrix, pool);
    for (int pass = 0; pass < 100; ++pass) {
      HiddenData in(random, 1, rows * dim, 0);
      in.gain.resize(static_cast<size_t>(dim));
      HeadRun full(row_list.size(), head.matrix);
      HeadRun certified(row_list.size(), head.matrix);
      std::vector<int32_t> rescored(row_list.size());
      cpu::head(head_args(head.matrix, in, row_list, {}, full), pool);
      cpu::certified_head(
          {head_args(head.matrix, in, row_list, {}, certified), built.view, rescored.data()}, pool);
      REQUIRE(first_difference(full.argmax, certified.argmax) == "");
      for (int32_t n : rescored) rescored_rows += n;
    }
  }
  REQUIRE(rescored_rows >= 20'000);
  REQUIRE(rescored_rows <= 20'000 * 20);
}

}  // namespace
}  // namespace edgellm
