// The CPU backend against ref, bit for bit: every op, every instruction set of this machine, one to
// three threads, odd sizes.
#include <catch2/catch.hpp>

#include "tests/kernels/cpu_pools.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

std::string name(const cpu::Pool& pool) {
  return std::string(pool.isa().name) + ", " + std::to_string(pool.threads()) + " threads";
}

// Rows of x that hold each row of a batch alone must come out as in the batch.
constexpr int kBatches[] = {1, 2, 3, 5, 8, 65, 130};

TEST_CASE("attn_out and ffn_down give the bits of ref") {
  Random random(1);
  const auto pools = all_pools({1, 2, 3});
  struct Shape {
    int cols, dim;
  };
  const Shape shapes[] = {{4, 1},    {12, 4},    {36, 3},     {124, 33},  {128, 31}, {132, 5},
                          {252, 64}, {256, 129}, {260, 7},    {576, 576}, {628, 65}, {1028, 20},
                          {2560, 8}, {6912, 9},  {23040, 12}, {1536, 576}};
  for (const Shape& shape : shapes) {
    for (int rows : kBatches) {
      if (static_cast<int64_t>(shape.cols) * shape.dim * rows > 20'000'000) continue;
      for (bool sub_norm : {false, true}) {
        const TernaryData w(random, shape.dim, shape.cols, random.below(2) == 1);
        const std::vector<float> y = activation_rows(random, rows, shape.cols);
        const std::vector<float> gain = gains(random, shape.cols);
        const std::vector<float> x = random.normals(static_cast<size_t>(rows * shape.dim), 3.0f);
        int32_t fault = 0;
        std::vector<float> expected = x;
        ref::attn_out({y.data(), sub_norm ? gain.data() : nullptr, 1e-5f, w.matrix, expected.data(),
                       rows, 0, &fault});
        for (const auto& pool : pools) {
          Poisoned<float> actual(x.size());
          std::copy(x.begin(), x.end(), actual.data());
          cpu::attn_out({y.data(), sub_norm ? gain.data() : nullptr, 1e-5f, w.matrix, actual.data(),
                         rows, 0, &fault},
                        *pool);
          INFO(name(*pool) << ", cols " << shape.cols << ", dim " << shape.dim << ", rows " << rows
                           << ", sub-norm " << sub_norm);
          REQUIRE(first_difference(expected, actual.values()) == "");
          REQUIRE(actual.guards_intact());
          REQUIRE(fault == 0);
        }
      }
    }
  }
}

TEST_CASE("the largest products of codes and weights do not overflow an inner sum") {
  const auto pools = all_pools({1, 2, 3});
  for (int cols : {128 * 16, 6912, 23040}) {
    for (uint8_t code : {uint8_t{0x55}, uint8_t{0xff}}) {  // all +1, all -1
      for (float value : {2.5f, -2.5f}) {                  // codes all 127, all -127
        const std::vector<uint8_t> codes(static_cast<size_t>(5 * cols / 4), code);
        const float scale = 1.0f;
        const std::vector<float> y(static_cast<size_t>(3 * cols), value);
        int32_t fault = 0;
        std::vector<float> expected(15, 0.0f);
        const TernaryMatrix w{codes.data(), &scale, 1, 5, cols};
        ref::attn_out({y.data(), nullptr, 0, w, expected.data(), 3, 0, &fault});
        for (const auto& pool : pools) {
          INFO(name(*pool) << ", cols " << cols);
          std::vector<float> actual(15, 0.0f);
          cpu::attn_out({y.data(), nullptr, 0, w, actual.data(), 3, 0, &fault}, *pool);
          REQUIRE(first_difference(expected, actual) == "");
        }
      }
    }
  }
}

TEST_CASE("ffn_up gives the bits of ref") {
  Random random(2);
  const auto pools = all_pools({1, 2, 3});
  for (const auto& [dim, ffn] : {std::pair{36, 31}, {320, 864}, {124, 65}, {576, 33}, {2560, 20}}) {
    for (int rows : kBatches) {
      for (GateActivation act : {GateActivation::kRelu2, GateActivation::kSilu}) {
        const TernaryData gate(random, ffn, dim);
        const TernaryData up(random, ffn, dim, true);
        const std::vector<float> x = activation_rows(random, rows, dim);
        const std::vector<float> gain = gains(random, dim);
        int32_t fault = 0;
        std::vector<float> expected(static_cast<size_t>(rows * ffn));
        FfnUpArgs args{x.data(), gain.data(), 1e-5f, gate.matrix, up.matrix,
                       act,      nullptr,     rows,  0,           &fault};
        args.u = expected.data();
        ref::ffn_up(args);
        for (const auto& pool : pools) {
          Poisoned<float> actual(expected.size());
          args.u = actual.data();
          cpu::ffn_up(args, *pool);
          INFO(name(*pool) << ", dim " << dim << ", ffn " << ffn << ", rows " << rows);
          REQUIRE(first_difference(expected, actual.values()) == "");
          REQUIRE(actual.guards_intact());
        }
      }
    }
  }
}

TEST_CASE("qkv and attention give the bits of ref") {
  Random random(3);
  const auto pools = all_pools({1, 2, 3});
  const HeadShape shapes[] = {{6, 2, 64},  {5, 1, 80}, {4, 4, 96},  {2, 1, 100}, {7, 1, 64},
                              {4, 1, 128}, {3, 3, 20}, {2, 2, 256}, {2, 1, 6},   {1, 1, 328}};
  for (const HeadShape& shape : shapes) {
    for (KvType type : {KvType::kF32, KvType::kI16, KvType::kI8}) {
      const int dim = 4 * 31;
      QkvData data(random, shape, type, dim, /*max_positions=*/200, /*sequences=*/3);
      CacheData& expected_cache = data.cache;
      std::vector<CacheData> caches(pools.size(), expected_cache.reordered_for_cpu());

      for (const Pass& pass : attention_passes()) {
        const int rows = static_cast<int>(pass.sequence.size());
        const RowPlaces places{pass.sequence.data(), pass.position.data()};
        const std::vector<float> x = activation_rows(random, rows, dim);
        const size_t width = static_cast<size_t>(rows * shape.heads * shape.head_dim);
        const size_t kv_width = static_cast<size_t>(rows) * shape.kv_width();
        int32_t fault = 0;
        std::vector<float> expected_q(width), expected_k(kv_width), expected_v(kv_width);
        std::vector<float> expected_out(width);
        QkvArgs args =
            data.args(x, pass, {expected_q.data(), expected_k.data(), expected_v.data()}, &fault);
        ref::qkv(args);
        AttentionArgs attention{expected_q.data(),
                                expected_k.data(),
                                expected_v.data(),
                                expected_cache.cache,
                                places,
                                expected_out.data(),
                                rows,
                                shape.heads,
                                /*layer=*/0,
                                &fault};
        ref::attention(attention);
        const CacheData expected_for_cpu = expected_cache.reordered_for_cpu();
        for (size_t i = 0; i < pools.size(); ++i) {
          INFO(name(*pools[i]) << ", heads " << shape.heads << "/" << shape.kv_heads << " of "
                               << shape.head_dim << ", rows " << rows << ", type "
                               << static_cast<int>(type));
          Poisoned<float> actual_q(width), actual_k(kv_width), actual_v(kv_width);
          Poisoned<float> actual_out(width);
          args.q_out = actual_q.data();
          args.k_out = actual_k.data();
          args.v_out = actual_v.data();
          cpu::qkv(args, *pools[i]);
          REQUIRE(first_difference(expected_q, actual_q.values()) == "");
          REQUIRE(first_difference(expected_k, actual_k.values()) == "");
          REQUIRE(first_difference(expected_v, actual_v.values()) == "");
          REQUIRE(
              (actual_q.guards_intact() && actual_k.guards_intact() && actual_v.guards_intact()));
          attention.q = actual_q.data();
          attention.k = actual_k.data();
          attention.v = actual_v.data();
          attention.kv = caches[i].cache;
          attention.out = actual_out.data();
          cpu::attention(attention, *pools[i]);
          REQUIRE(caches[i].k == expected_for_cpu.k);
          REQUIRE(caches[i].v == expected_for_cpu.v);
          REQUIRE(caches[i].units == expected_for_cpu.units);
          REQUIRE(first_difference(expected_out, actual_out.values()) == "");
          REQUIRE(actual_out.guards_intact());
        }
      }
    }
  }
}

TEST_CASE("embed and head give the bits of ref") {
  Random random(4);
  const auto pools = all_pools({1, 2, 3});
  for (DenseType type : {DenseType::kF32, DenseType::kF16, DenseType::kBF16}) {
    for (const auto& [dim, vocab] :
         {std::pair{4, 1}, {36, 131}, {124, 64}, {320, 65}, {628, 1000}, {2564, 33}, {256, 127}}) {
      for (int rows : {1, 2, 5}) {
        const DenseData table(random, vocab, dim, type);
        const DenseData w(random, vocab, dim, type);
        const std::vector<float> gain = gains(random, dim);
        std::vector<int32_t> ids;
        std::vector<int32_t> row_list;
        for (int r = 0; r < rows; ++r) {
          ids.push_back(random.below(vocab));
          row_list.push_back(rows - 1 - r);
        }
        std::vector<float> x(static_cast<size_t>(rows * dim));
        ref::embed({table.matrix, ids.data(), x.data(), rows});
        const std::vector<int32_t> banned = {random.below(vocab)};
        int32_t fault = 0;
        std::vector<float> normed(x.size());
        std::vector<float> logits(static_cast<size_t>(rows * vocab));
        std::vector<int32_t> argmax(static_cast<size_t>(rows));
        HeadArgs args;
        args.x = x.data();
        args.row_list = row_list.data();
        args.gain = gain.data();
        args.eps = 1e-5f;
        args.w = w.matrix;
        args.normed = normed.data();
        args.logits = logits.data();
        args.argmax = argmax.data();
        args.banned = banned.data();
        args.n_banned = 1;
        args.rows = rows;
        args.fault = &fault;
        ref::head(args);
        for (const auto& pool : pools) {
          INFO(name(*pool) << ", dim " << dim << ", vocab " << vocab << ", rows " << rows);
          Poisoned<float> actual_x(x.size());
          cpu::embed({table.matrix, ids.data(), actual_x.data(), rows}, *pool);
          REQUIRE(first_difference(x, actual_x.values()) == "");
          REQUIRE(actual_x.guards_intact());
          Poisoned<float> actual_normed(normed.size());
          Poisoned<float> actual_logits(logits.size());
          Poisoned<int32_t> actual_argmax(argmax.size());
          HeadArgs actual = args;
          actual.normed = actual_normed.data();
          actual.logits = actual_logits.data();
          actual.argmax = actual_argmax.data();
          cpu::head(actual, *pool);
          REQUIRE(first_difference(normed, actual_normed.values()) == "");
          REQUIRE(first_difference(logits, actual_logits.values()) == "");
          REQUIRE(first_difference(argmax, actual_argmax.values()) == "");
          REQUIRE((actual_normed.guards_intact() && actual_logits.guards_intact() &&
                   actual_argmax.guards_intact()));
        }
      }
    }
  }
}

TEST_CASE("ties of the arg-max go to the lowest id, -0 equals +0, banned ids are left out") {
  // One input dimension of 4 makes the logits the head's first column.
  const float head[] = {-0.0f, 0, 0, 0, 0.0f, 0, 0, 0, -1, 0, 0, 0, 0.0f, 0, 0, 0};
  const float x[] = {2, 0, 0, 0};
  const float gain[] = {1, 1, 1, 1};
  const int32_t row = 0;
  struct Case {
    std::vector<int32_t> banned;
    int32_t expected;
  };
  for (const Case& c : {Case{{}, 0}, Case{{0}, 1}, Case{{1, 0}, 3}, Case{{3, 1, 0}, 2}}) {
    float normed[4];
    float logits[4];
    int32_t fault = 0;
    int32_t argmax = -1;
    const HeadArgs args{x,      &row,   gain,    1e-5f,           {head, DenseType::kF32, 4, 4},
                        normed, logits, &argmax, c.banned.data(), static_cast<int>(c.banned.size()),
                        1,      1,      &fault};
    ref::head(args);
    REQUIRE(argmax == c.expected);
    for (const auto& pool : all_pools()) {
      argmax = -1;
      cpu::head(args, *pool);
      REQUIRE(argmax == c.expected);
    }
  }
}

TEST_CASE("a value that is not finite raises the fault of its layer in ref and cpu") {
  Random random(5);
  const TernaryData w(random, 8, 64);
  std::vector<float> y = random.normals(3 * 64);
  const std::vector<float> x = random.normals(3 * 8);
  for (float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    y[70] = bad;
    int32_t fault = 0;
    std::vector<float> expected = x;
    ref::ffn_down({y.data(), nullptr, 0, w.matrix, expected.data(), 3, 4, &fault});
    REQUIRE(fault == 5);
    for (const auto& pool : all_pools()) {
      fault = 0;
      std::vector<float> actual = x;
      cpu::ffn_down({y.data(), nullptr, 0, w.matrix, actual.data(), 3, 4, &fault}, *pool);
      REQUIRE(fault == 5);
      REQUIRE(first_difference(expected, actual) == "");
    }
  }
  // The residual overflows although its operands are finite.
  y.assign(3 * 64, 1.0f);
  std::vector<float> large(3 * 8, 3.4e38f);
  TernaryData heavy(random, 8, 64);
  heavy.scale = {3e38f};
  heavy.matrix.scale = heavy.scale.data();
  for (auto& code : heavy.codes) code = 0x55;  // all +1
  for (const auto& pool : all_pools()) {
    std::vector<float> actual = large;
    int32_t fault = 0;
    cpu::ffn_down({y.data(), nullptr, 0, heavy.matrix, actual.data(), 3, 2, &fault}, *pool);
    REQUIRE(fault == 3);
  }
}

}  // namespace
}  // namespace edgellm
