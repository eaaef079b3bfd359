// What models with input norms need of the ops: a norm by itself, and gains of their own for k, v
// and up. ref against other ways to compute the same, cpu against ref, bit for bit.
#include <catch2/catch.hpp>

#include "tests/kernels/cpu_pools.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

TEST_CASE("a norm by itself is that of the formula, and cpu gives the bits of ref") {
  Random random(81);
  const auto pools = all_pools();
  for (int dim : {1, 31, 33, 257, 1000, 2560}) {
    for (int rows : {1, 2, 9}) {
      const std::vector<float> x = activation_rows(random, rows, dim);
      const std::vector<float> gain = gains(random, dim);
      std::vector<float> expected(x.size());
      NormArgs args{x.data(), gain.data(), 1e-5f, expected.data(), rows, dim};
      ref::norm(args);
      for (size_t i = 0; i < x.size(); ++i) {
        const size_t row = i / static_cast<size_t>(dim) * static_cast<size_t>(dim);
        double squares = 0;
        for (size_t j = row; j < row + static_cast<size_t>(dim); ++j) {
          squares += std::pow(static_cast<double>(x[j]), 2);
        }
        const double r = 1 / std::sqrt(squares / dim + 1e-5);
        REQUIRE(static_cast<double>(expected[i]) ==
                Approx(static_cast<double>(x[i]) * r * static_cast<double>(gain[i - row]))
                    .epsilon(1e-6));
      }
      for (const auto& pool : pools) {
        INFO(pool->isa().name << ", " << pool->threads() << " threads, dim " << dim << ", rows "
                              << rows);
        Poisoned<float> actual(x.size());
        args.x = x.data();
        args.normed = actual.data();
        cpu::norm(args, *pool);
        REQUIRE(first_difference(expected, actual.values()) == "");
        REQUIRE(actual.guards_intact());
        std::copy(x.begin(), x.end(), actual.data());
        args.x = actual.data();
        cpu::norm(args, *pool);
        REQUIRE(first_difference(expected, actual.values()) == "");
      }
    }
  }
}

TEST_CASE("qkv with gains for k and v is three products, and cpu gives the bits of ref") {
  Random random(82);
  const auto pools = all_pools();
  const HeadShape shape{5, 1, 80};
  for (Activations activations : {Activations::kInt8Row, Activations::kInt16Group}) {
    for (int rows : {1, 2, 67}) {
      const int dim = 300;
      const QkvData data(random, shape, KvType::kF32, dim, /*max_positions=*/80, /*sequences=*/1);
      Pass pass;
      for (int row = 0; row < rows; ++row) {
        pass.sequence.push_back(0);
        pass.position.push_back(row);
      }
      const std::vector<float> x = activation_rows(random, rows, dim);
      const std::vector<float> k_gain = gains(random, dim);
      const std::vector<float> v_gain = gains(random, dim);
      const size_t n = static_cast<size_t>(rows);
      int32_t fault = 0;
      std::vector<float> q(n * shape.q_width()), k(n * shape.kv_width()), v(k.size());
      QkvArgs args = data.args(x, pass, {q.data(), k.data(), v.data()}, &fault);
      args.activations = activations;
      // Each product as that of a model whose only gain is this one.
      std::vector<float> unused_q(q.size()), unused_k(k.size()), unused_v(v.size());
      args.k_out = unused_k.data();
      args.v_out = unused_v.data();
      ref::qkv(args);
      args.q_out = unused_q.data();
      args.k_out = k.data();
      args.gain = k_gain.data();
      ref::qkv(args);
      args.k_out = unused_k.data();
      args.v_out = v.data();
      args.gain = v_gain.data();
      ref::qkv(args);

      args.gain = data.gain.data();
      const auto check = [&](const auto& compute) {
        for (const bool v_has_own : {true, false}) {
          Poisoned<float> actual_q(q.size()), actual_k(k.size()), actual_v(v.size());
          args.q_out = actual_q.data();
          args.k_out = actual_k.data();
          args.v_out = actual_v.data();
          args.k_input_gain = k_gain.data();
          args.v_input_gain = v_has_own ? v_gain.data() : nullptr;
          compute(args);
          REQUIRE(first_difference(q, actual_q.values()) == "");
          REQUIRE(first_difference(k, actual_k.values()) == "");
          REQUIRE((first_difference(v, actual_v.values()) == "") == v_has_own);
          REQUIRE(
              (actual_q.guards_intact() && actual_k.guards_intact() && actual_v.guards_intact()));
        }
      };
      check([](const QkvArgs& a) { ref::qkv(a); });
      for (const auto& pool : pools) {
        INFO(pool->isa().name << ", " << pool->threads() << " threads, rows " << rows);
        check([&](const QkvArgs& a) { cpu::qkv(a, *pool); });
      }
      REQUIRE(fault == 0);
    }
  }
}

TEST_CASE("ffn_up with a gain for up is two products, and cpu gives the bits of ref") {
  Random random(83);
  const auto pools = all_pools();
  for (Activations activations : {Activations::kInt8Row, Activations::kInt16Group}) {
    for (int rows : {1, 3, 66}) {
      const int dim = 140;
      const int ffn = 261;
      const TernaryData gate(random, ffn, dim), up(random, ffn, dim);
      const std::vector<float> x = activation_rows(random, rows, dim);
      const std::vector<float> gain = gains(random, dim);
      const std::vector<float> up_gain = gains(random, dim);
      int32_t fault = 0;
      // Products alone: added to a residual of zeros.
      std::vector<float> g(static_cast<size_t>(rows * ffn)), u(g.size()), expected(g.size());
      ref::attn_out(
          {x.data(), gain.data(), 1e-5f, gate.matrix, g.data(), rows, 0, &fault, activations});
      ref::attn_out(
          {x.data(), up_gain.data(), 1e-5f, up.matrix, u.data(), rows, 0, &fault, activations});
      for (size_t i = 0; i < g.size(); ++i) {
        const float t = g[i] > 0 ? g[i] : 0.0f;
        expected[i] = (t * t) * u[i] + 0.0f;  // a sum with the residual is never -0
      }
      FfnUpArgs args{x.data(), gain.data(), 1e-5f, gate.matrix, up.matrix,   GateActivation::kRelu2,
                     nullptr,  rows,        0,     &fault,      activations, up_gain.data()};
      const auto check = [&](const auto& compute) {
        Poisoned<float> actual(g.size());
        args.u = actual.data();
        compute(args);
        for (float& value : actual.values()) value += 0.0f;
        REQUIRE(first_difference(expected, actual.values()) == "");
        REQUIRE(actual.guards_intact());
      };
      check([](const FfnUpArgs& a) { ref::ffn_up(a); });
      for (const auto& pool : pools) {
        INFO(pool->isa().name << ", " << pool->threads() << " threads, rows " << rows);
        check([&](const FfnUpArgs& a) { cpu::ffn_up(a, *pool); });
      }
      REQUIRE(fault == 0);
    }
  }
}

TEST_CASE("a value that is not finite with one of the gains is a fault") {
  Random random(84);
  cpu::Pool pool(1, *cpu::usable_isas().front());
  const TernaryData gate(random, 8, 4), up(random, 8, 4);
  const std::vector<float> x = {1e30f, 1, 2, 3};
  const std::vector<float> gain = {1, 1, 1, 1};
  const std::vector<float> large = {1e30f, 1, 1, 1};
  std::vector<float> u(8);
  for (const bool is_ref : {true, false}) {
    int32_t fault = 0;
    FfnUpArgs args{x.data(), gain.data(), 1e-5f, gate.matrix, up.matrix, GateActivation::kSilu,
                   u.data(), 1,           6,     &fault};
    is_ref ? ref::ffn_up(args) : cpu::ffn_up(args, pool);
    CHECK(fault == 0);
    args.up_gain = large.data();
    is_ref ? ref::ffn_up(args) : cpu::ffn_up(args, pool);
    CHECK(fault == 7);
  }
}

}  // namespace
}  // namespace edgellm
