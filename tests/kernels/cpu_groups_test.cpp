// Activations::kInt16Group: ref against double precision, cpu against ref, bit for bit.
#include <catch2/catch.hpp>

#include "tests/kernels/cpu_pools.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

constexpr Activations kInt16 = Activations::kInt16Group;

struct Shape {
  int cols, rows;
};
// Groups that are not full, an odd number of them, more than a tile keeps at once.
constexpr Shape kShapes[] = {{1, 1},    {31, 3},    {127, 5},  {128, 31},   {129, 4},
                             {255, 7},  {256, 65},  {384, 33}, {1000, 130}, {2560, 9},
                             {8192, 6}, {12288, 5}, {8320, 3}, {8320, 17},  {16300, 4}};

double value(const TernaryMatrix& w, int row, int col) {
  const int bits = w.codes[static_cast<size_t>(row) * ((static_cast<size_t>(w.cols) + 3) / 4) +
                           static_cast<size_t>(col / 4)] >>
                       (2 * (col % 4)) &
                   3;
  const size_t group = static_cast<size_t>(row) * static_cast<size_t>(group_count(w.cols)) +
                       static_cast<size_t>(col / kScaleGroup);
  const float scale = w.n_scales > 0 ? w.scale[w.n_scales == 1 ? 0 : row]
                                     : widen(w.group_scale, w.group_scale_type, group);
  return bits == 0 ? 0.0 : static_cast<double>(bits == 1 ? scale : -scale);
}

TEST_CASE("products of int16 groups are those of floats within their bound") {
  Random random(71);
  for (const Shape& shape : kShapes) {
    for (int kind = 0; kind < 4; ++kind) {
      const TernaryData w = int16_weights(random, shape.rows, shape.cols, kind);
      const std::vector<float> y = activation_rows(random, 3, shape.cols);
      const std::vector<float> gain = gains(random, shape.cols);
      const bool has_gain = random.below(2) == 1;
      std::vector<float> x(static_cast<size_t>(3 * shape.rows), 0.0f);
      int32_t fault = 0;
      ref::attn_out({y.data(), has_gain ? gain.data() : nullptr, 1e-5f, w.matrix, x.data(), 3, 0,
                     &fault, kInt16});
      REQUIRE(fault == 0);
      for (int t = 0; t < 3; ++t) {
        const float* row = y.data() + t * shape.cols;
        double squares = 0;
        for (int c = 0; c < shape.cols; ++c) squares += std::pow(static_cast<double>(row[c]), 2);
        const double r = has_gain ? 1 / std::sqrt(squares / shape.cols + 1e-5) : 1.0;
        for (int i = 0; i < shape.rows; ++i) {
          double expected = 0;
          double bound = 1e-35;
          double size = 0;
          for (int begin = 0; begin < shape.cols; begin += kScaleGroup) {
            double amax = 0;
            double weights = 0;
            for (int c = begin; c < std::min(begin + kScaleGroup, shape.cols); ++c) {
              const double z =
                  static_cast<double>(has_gain ? row[c] * gain[static_cast<size_t>(c)] : row[c]);
              amax = std::max(amax, std::fabs(z));
              weights += std::fabs(value(w.matrix, i, c));
              expected += value(w.matrix, i, c) * z * r;
              size += std::fabs(value(w.matrix, i, c) * z * r);
            }
            // Half a code each, and the roundings of z * per_unit, which are below a part in 2^22.
            bound += weights * r * amax * (0.5 / 32639 + 0x1p-22);
          }
          bound += size * (group_count(shape.cols) + 20) * 0x1p-24;  // of the float32 sums
          const double actual = static_cast<double>(x[static_cast<size_t>(t * shape.rows + i)]);
          INFO("cols " << shape.cols << ", kind " << kind << ", row " << t << ", gain " << has_gain
                       << ": " << actual << ", expected " << expected << " within " << bound);
          REQUIRE(std::fabs(actual - expected) <= bound);
        }
      }
    }
  }
}

TEST_CASE("attn_out and ffn_up of int16 groups give the bits of ref") {
  Random random(72);
  const auto pools = all_pools();
  for (const Shape& shape : kShapes) {
    for (int rows : {1, 2, 3, 4, 5, 8, 65}) {
      if (static_cast<int64_t>(shape.cols) * shape.rows * rows > 3'000'000) continue;
      const int kind = random.below(4);
      const TernaryData w = int16_weights(random, shape.rows, shape.cols, kind);
      const TernaryData up = int16_weights(random, shape.rows, shape.cols, random.below(4));
      const std::vector<float> y = activation_rows(random, rows, shape.cols);
      const std::vector<float> gain = gains(random, shape.cols);
      const float* gain_or_null = random.below(2) == 1 ? gain.data() : nullptr;
      const std::vector<float> x = random.normals(static_cast<size_t>(rows * shape.rows), 3.0f);
      int32_t fault = 0;
      std::vector<float> expected = x;
      ref::attn_out(
          {y.data(), gain_or_null, 1e-5f, w.matrix, expected.data(), rows, 0, &fault, kInt16});
      std::vector<float> expected_u(x.size());
      FfnUpArgs ffn{
          y.data(),          gain.data(), 1e-5f, w.matrix, up.matrix, GateActivation::kSilu,
          expected_u.data(), rows,        0,     &fault,   kInt16};
      ref::ffn_up(ffn);
      for (const auto& pool : pools) {
        INFO(pool->isa().name << ", " << pool->threads() << " threads, cols " << shape.cols
                              << ", dim " << shape.rows << ", rows " << rows << ", kind " << kind);
        Poisoned<float> actual(x.size());
        std::copy(x.begin(), x.end(), actual.data());
        cpu::attn_out(
            {y.data(), gain_or_null, 1e-5f, w.matrix, actual.data(), rows, 0, &fault, kInt16},
            *pool);
        REQUIRE(first_difference(expected, actual.values()) == "");
        REQUIRE(actual.guards_intact());
        Poisoned<float> actual_u(x.size());
        ffn.u = actual_u.data();
        cpu::ffn_up(ffn, *pool);
        REQUIRE(first_difference(expected_u, actual_u.values()) == "");
        REQUIRE(actual_u.guards_intact());
        REQUIRE(fault == 0);
      }
    }
  }
}

TEST_CASE("qkv with norms of the heads gives the bits of ref") {
  Random random(73);
  const auto pools = all_pools();
  for (const HeadShape& shape : {HeadShape{6, 2, 64}, {5, 1, 80}, {4, 4, 96}, {4, 1, 128}}) {
    for (Activations activations : {Activations::kInt8Row, kInt16}) {
      const int dim = 300;
      const QkvData data(random, shape, KvType::kF32, dim, /*max_positions=*/200, /*sequences=*/3);
      const std::vector<float> q_gain = gains(random, shape.head_dim);
      const std::vector<float> k_gain = gains(random, shape.head_dim);
      for (const Pass& pass : attention_passes()) {
        const std::vector<float> x =
            activation_rows(random, static_cast<int>(pass.sequence.size()), dim);
        const size_t width = pass.sequence.size() * shape.q_width();
        const size_t kv_width = pass.sequence.size() * shape.kv_width();
        int32_t fault = 0;
        std::vector<float> q(width), k(kv_width), v(kv_width);
        QkvArgs args = data.args(x, pass, {q.data(), k.data(), v.data()}, &fault);
        args.activations = activations;
        args.q_gain = q_gain.data();
        args.k_gain = k_gain.data();
        ref::qkv(args);
        for (const auto& pool : pools) {
          INFO(pool->isa().name << ", " << pool->threads() << " threads, heads of "
                                << shape.head_dim);
          Poisoned<float> actual_q(width), actual_k(kv_width), actual_v(kv_width);
          args.q_out = actual_q.data();
          args.k_out = actual_k.data();
          args.v_out = actual_v.data();
          cpu::qkv(args, *pool);
          REQUIRE(first_difference(q, actual_q.values()) == "");
          REQUIRE(first_difference(k, actual_k.values()) == "");
          REQUIRE(first_difference(v, actual_v.values()) == "");
          REQUIRE(
              (actual_q.guards_intact() && actual_k.guards_intact() && actual_v.guards_intact()));
        }
      }
    }
  }
}

TEST_CASE("the norm of a head and its turn by RoPE are those of the formula") {
  Random random(74);
  const HeadShape shape{2, 1, 8};
  const QkvData data(random, shape, KvType::kF32, 40, /*max_positions=*/20, /*sequences=*/1);
  const Pass pass{{0}, {13}};
  const std::vector<float> x = activation_rows(random, 1, 40);
  const std::vector<float> gain = gains(random, 8);
  std::vector<float> q(16), k(8), v(8), plain_q(16), plain_k(8), plain_v(8);
  int32_t fault = 0;
  QkvArgs args = data.args(x, pass, {q.data(), k.data(), v.data()}, &fault);
  args.q_gain = gain.data();
  args.k_gain = gain.data();
  ref::qkv(args);
  // RoPE keeps the length of each pair, so the norm can be told from results without it.
  ref::qkv(data.args(x, pass, {plain_q.data(), plain_k.data(), plain_v.data()}, &fault));
  REQUIRE(v == plain_v);
  for (int h = 0; h < 2; ++h) {
    double squares = 0;
    for (int i = 0; i < 8; ++i) {
      squares += std::pow(static_cast<double>(plain_q[static_cast<size_t>(8 * h + i)]), 2);
    }
    const double r = 1 / std::sqrt(squares / 8 + 1e-6);
    for (int i = 0; i < 4; ++i) {
      const double cosine = static_cast<double>(data.rope.cosine[static_cast<size_t>(13 * 4 + i)]);
      const double sine = static_cast<double>(data.rope.sine[static_cast<size_t>(13 * 4 + i)]);
      const auto at = static_cast<size_t>(8 * h + i);
      const double turned_low = static_cast<double>(plain_q[at]);
      const double turned_high = static_cast<double>(plain_q[at + 4]);
      // Back, normed, and turned again.
      const double low = (turned_low * cosine + turned_high * sine) * r *
                         static_cast<double>(gain[static_cast<size_t>(i)]);
      const double high = (turned_high * cosine - turned_low * sine) * r *
                          static_cast<double>(gain[static_cast<size_t>(i + 4)]);
      REQUIRE(static_cast<double>(q[at]) == Approx(low * cosine - high * sine).margin(1e-5));
      REQUIRE(static_cast<double>(q[at + 4]) == Approx(high * cosine + low * sine).margin(1e-5));
    }
  }
}

TEST_CASE("a ternary table and head give the bits of ref") {
  Random random(75);
  const auto pools = all_pools();
  for (const auto& [dim, vocab] :
       {std::pair{4, 1}, {36, 131}, {128, 64}, {300, 65}, {640, 1000}, {2564, 33}, {256, 127}}) {
    for (int rows : {1, 2, 5, 70}) {
      const TernaryData table = int16_weights(random, vocab, dim, random.below(4));
      std::vector<int32_t> ids;
      std::vector<int32_t> row_list;
      for (int r = 0; r < rows; ++r) {
        ids.push_back(random.below(vocab));
        row_list.push_back(rows - 1 - r);
      }
      std::vector<float> x(static_cast<size_t>(rows * dim));
      const DenseMatrix sizes{nullptr, DenseType::kF32, vocab, dim};
      const EmbedArgs embed{sizes, ids.data(), x.data(), rows, table.matrix};
      ref::embed(embed);
      for (int i = 0; i < dim; ++i) {
        REQUIRE(static_cast<double>(x[static_cast<size_t>(i)]) == value(table.matrix, ids[0], i));
      }
      const std::vector<float> gain = gains(random, dim);
      const std::vector<float> hidden = activation_rows(random, rows, dim);
      std::vector<float> normed(x.size());
      std::vector<float> logits(static_cast<size_t>(rows * vocab));
      std::vector<int32_t> argmax(static_cast<size_t>(rows));
      int32_t fault = 0;
      HeadArgs args;
      args.x = hidden.data();
      args.row_list = row_list.data();
      args.gain = gain.data();
      args.eps = 1e-5f;
      args.w = sizes;
      args.ternary = table.matrix;
      args.normed = normed.data();
      args.logits = logits.data();
      args.argmax = argmax.data();
      args.rows = rows;
      args.fault = &fault;
      ref::head(args);
      // The head is a product of `normed`.
      double expected = 0;
      double size = 1e-30;
      for (int i = 0; i < dim; ++i) {
        const double term =
            value(table.matrix, vocab / 2, i) * static_cast<double>(normed[static_cast<size_t>(i)]);
        expected += term;
        size += std::fabs(term);
      }
      REQUIRE(static_cast<double>(logits[static_cast<size_t>(vocab / 2)]) ==
              Approx(expected).margin(1e-3 * size));
      for (const auto& pool : pools) {
        INFO(pool->isa().name << ", " << pool->threads() << " threads, dim " << dim << ", vocab "
                              << vocab << ", rows " << rows);
        Poisoned<float> actual_x(x.size());
        EmbedArgs actual_embed = embed;
        actual_embed.x = actual_x.data();
        cpu::embed(actual_embed, *pool);
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

TEST_CASE("a value that is not finite raises the fault of int16 groups") {
  Random random(76);
  const TernaryData w = TernaryData::grouped(random, 9, 300, DenseType::kF16);
  for (float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (int at : {0, 140, 299}) {
      std::vector<float> y = random.normals(2 * 300);
      y[static_cast<size_t>(300 + at)] = bad;
      int32_t fault = 0;
      std::vector<float> expected(18, 1.0f);
      ref::ffn_down({y.data(), nullptr, 0, w.matrix, expected.data(), 2, 4, &fault, kInt16});
      REQUIRE(fault == 5);
      for (const auto& pool : all_pools()) {
        fault = 0;
        std::vector<float> actual(18, 1.0f);
        cpu::ffn_down({y.data(), nullptr, 0, w.matrix, actual.data(), 2, 4, &fault, kInt16}, *pool);
        REQUIRE(fault == 5);
        REQUIRE(first_difference(expected, actual) == "");
      }
    }
  }
}

}  // namespace
}  // namespace edgellm
