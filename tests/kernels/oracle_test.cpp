// ref against the formulas in double precision, written independently: so that ref and cpu, which
// agree to the bit, cannot be wrong together.
//
// int8 codes make a linear layer a step function, so the oracle takes its own codes only where no
// value lies near a rounding border; the generator avoids such rows. Tolerances come from float32
// rounding (u = 2^-24) and the lengths of the sums.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;
constexpr double kU = 0x1p-24;

int weight(const TernaryMatrix& w, int row, int column) {
  const int bits = w.codes[static_cast<size_t>(row) * ((static_cast<size_t>(w.cols) + 3) / 4) +
                           static_cast<size_t>(column / 4)] >>
                       (2 * (column % 4)) &
                   3;
  return bits == 3 ? -1 : bits;
}

// RMSNorm, absmax int8 quantisation and the ternary product, as the papers write them. `safe` turns
// false when a value lies so near a rounding border that float32 may round it the other way.
std::vector<double> bit_linear(const float* x, const float* gain, double eps,
                               const TernaryMatrix& w, bool& safe) {
  const int n = w.cols;
  std::vector<double> h(x, x + n);
  if (gain != nullptr) {
    double squares = 0;
    for (double v : h) squares += v * v;
    const double r = 1 / std::sqrt(squares / n + eps);
    for (int i = 0; i < n; ++i) h[static_cast<size_t>(i)] *= r * static_cast<double>(gain[i]);
  }
  double amax = 1e-5;
  for (double v : h) amax = std::max(amax, std::fabs(v));
  std::vector<double> codes;
  for (double v : h) {
    const double scaled = v * 127 / amax;
    codes.push_back(std::nearbyint(scaled));
    if (std::fabs(std::fabs(scaled - std::floor(scaled)) - 0.5) < 127 * 8 * kU) safe = false;
  }
  std::vector<double> y;
  for (int r = 0; r < w.rows; ++r) {
    double sum = 0;
    for (int c = 0; c < n; ++c) sum += weight(w, r, c) * codes[static_cast<size_t>(c)];
    const double scale = static_cast<double>(w.scale[w.n_scales == 1 ? 0 : r]);
    y.push_back(sum * scale * amax / 127);
  }
  return y;
}

// |actual - expected| <= relative * |expected| for every element.
void require_close(const std::vector<double>& expected, const float* actual, double relative,
                   double absolute = 0) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(static_cast<double>(actual[i]) - expected[i]);
    if (!(error <= relative * std::fabs(expected[i]) + absolute)) {
      INFO("at " << i << ": " << actual[i] << ", expected " << expected[i]);
      REQUIRE(error <= relative * std::fabs(expected[i]) + absolute);
    }
  }
}

TEST_CASE("attn_out and ffn_down agree with the double-precision oracle") {
  Random random(11);
  int compared = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const int cols = 4 * (1 + random.below(80));
    const TernaryData w(random, 1 + random.below(40), cols, trial % 2 == 0);
    const std::vector<float> y =
        random.normals(static_cast<size_t>(cols), random.uniform(0.1f, 20.0f));
    const std::vector<float> gain = gains(random, cols);
    const bool sub_norm = trial % 3 == 0;
    bool safe = true;
    const std::vector<double> expected =
        bit_linear(y.data(), sub_norm ? gain.data() : nullptr, 1e-5, w.matrix, safe);
    if (!safe) continue;
    ++compared;
    std::vector<float> x(expected.size(), 0.0f);
    int32_t fault = 0;
    ref::attn_out(
        {y.data(), sub_norm ? gain.data() : nullptr, 1e-5f, w.matrix, x.data(), 1, 0, &fault});
    // s: 2 roundings, m / s, times r, times acc: 5; r adds its sum (9 levels and cols / 256), /n,
    // +eps, sqrt, 1/.
    require_close(expected, x.data(), (sub_norm ? 5 + 6 + 9 : 5) * kU);
  }
  REQUIRE(compared > 100);
}

TEST_CASE("ffn_up agrees with the double-precision oracle") {
  Random random(12);
  int compared = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const int dim = 4 * (1 + random.below(60));
    const int ffn = 1 + random.below(40);
    const TernaryData gate(random, ffn, dim);
    const TernaryData up(random, ffn, dim);
    const std::vector<float> x =
        random.normals(static_cast<size_t>(dim), random.uniform(0.1f, 20.0f));
    const std::vector<float> gain = gains(random, dim);
    bool safe = true;
    const std::vector<double> g = bit_linear(x.data(), gain.data(), 1e-5, gate.matrix, safe);
    const std::vector<double> u = bit_linear(x.data(), gain.data(), 1e-5, up.matrix, safe);
    if (!safe) continue;
    ++compared;
    for (GateActivation act : {GateActivation::kRelu2, GateActivation::kSilu}) {
      std::vector<double> expected;
      for (size_t i = 0; i < g.size(); ++i) {
        const double activated = act == GateActivation::kRelu2 ? (g[i] > 0 ? g[i] * g[i] : 0)
                                                               : g[i] / (1 + std::exp(-g[i]));
        expected.push_back(activated * u[i]);
      }
      std::vector<float> actual(expected.size());
      int32_t fault = 0;
      ref::ffn_up(
          {x.data(), gain.data(), 1e-5f, gate.matrix, up.matrix, act, actual.data(), 1, 0, &fault});
      // Three products with 20 u each; exp(-g) turns an error of g into |g| times as much.
      double largest = 1;
      for (double value : g) largest = std::max(largest, std::fabs(value));
      require_close(expected, actual.data(), (60 + 20 * largest + 8) * kU);
    }
  }
  REQUIRE(compared > 100);
}

TEST_CASE("qkv and attention agree with the double-precision oracle") {
  Random random(13);
  const int heads = 4;
  const int kv_heads = 2;
  const int head_dim = 20;
  const int dim = 64;
  const int rows = 150;
  const TernaryData q(random, heads * head_dim, dim);
  const TernaryData k(random, kv_heads * head_dim, dim);
  const TernaryData v(random, kv_heads * head_dim, dim);
  const std::vector<float> gain = gains(random, dim);
  const RopeData rope(rows, head_dim, 10000.0);
  CacheData cache(random, 1, rows, 64, kv_heads, head_dim, KvType::kF32);
  std::vector<float> x(static_cast<size_t>(rows * dim));
  std::vector<std::vector<double>> exact_q, exact_k, exact_v;
  for (int row = 0; row < rows; ++row) {
    bool safe = false;
    while (!safe) {
      safe = true;
      float* values = x.data() + row * dim;
      for (int i = 0; i < dim; ++i) values[i] = 2 * random.normal();
      exact_q.push_back(bit_linear(values, gain.data(), 1e-5, q.matrix, safe));
      exact_k.push_back(bit_linear(values, gain.data(), 1e-5, k.matrix, safe));
      exact_v.push_back(bit_linear(values, gain.data(), 1e-5, v.matrix, safe));
      if (!safe) {
        exact_q.pop_back();
        exact_k.pop_back();
        exact_v.pop_back();
      }
    }
    const auto rotate = [&](std::vector<double>& vector) {
      for (size_t h = 0; h < vector.size(); h += head_dim) {
        for (int i = 0; i < head_dim / 2; ++i) {
          const double angle = row * std::pow(10000.0, -2.0 * i / head_dim);
          double& low = vector[h + static_cast<size_t>(i)];
          double& high = vector[h + static_cast<size_t>(i + head_dim / 2)];
          const double old_low = low;
          low = low * std::cos(angle) - high * std::sin(angle);
          high = high * std::cos(angle) + old_low * std::sin(angle);
        }
      }
    };
    rotate(exact_q.back());
    rotate(exact_k.back());
  }
  std::vector<int32_t> positions;
  for (int row = 0; row < rows; ++row) positions.push_back(row);
  const std::vector<int32_t> sequences(static_cast<size_t>(rows), 0);
  const RowPlaces places{sequences.data(), positions.data()};
  std::vector<float> q_out(static_cast<size_t>(rows * heads * head_dim));
  std::vector<float> k_out(static_cast<size_t>(rows * kv_heads * head_dim)), v_out(k_out.size());
  std::vector<float> out(q_out.size());
  int32_t fault = 0;
  QkvArgs args{x.data(),
               gain.data(),
               1e-5f,
               q.matrix,
               k.matrix,
               v.matrix,
               rope.cosine.data(),
               rope.sine.data(),
               positions.data(),
               q_out.data(),
               k_out.data(),
               v_out.data(),
               rows,
               dim,
               head_dim,
               0,
               &fault};
  ref::qkv(args);
  ref::attention({q_out.data(), k_out.data(), v_out.data(), cache.cache, places, out.data(), rows,
                  heads, 0, &fault});
  for (int row = 0; row < rows; ++row) {
    for (int h = 0; h < heads; ++h) {
      const size_t qh = static_cast<size_t>(h * head_dim);
      const size_t kvh = static_cast<size_t>(h / (heads / kv_heads) * head_dim);
      const size_t r = static_cast<size_t>(row);
      std::vector<double> scores;
      for (int p = 0; p <= row; ++p) {
        double dot = 0;
        for (size_t d = 0; d < head_dim; ++d)
          dot += exact_q[r][qh + d] * exact_k[static_cast<size_t>(p)][kvh + d];
        scores.push_back(dot / std::sqrt(static_cast<double>(head_dim)));
      }
      const double max = *std::max_element(scores.begin(), scores.end());
      std::vector<double> expected(static_cast<size_t>(head_dim), 0.0);
      double total = 0;
      double largest_v = 0;
      for (size_t p = 0; p < scores.size(); ++p) {
        const double weight_of_p = std::exp(scores[p] - max);
        total += weight_of_p;
        for (size_t d = 0; d < expected.size(); ++d) {
          expected[d] += weight_of_p * exact_v[p][kvh + d];
          largest_v = std::max(largest_v, std::fabs(exact_v[p][kvh + d]));
        }
      }
      for (double& e : expected) e /= total;
      // Angles are float32: position * inv_freq is off by up to 150 * 2 u = 1.8e-5 in q and in k, a
      // score by twice that times |q| |k| / sqrt(head_dim), about 5; the weights by as much.
      require_close(expected, out.data() + r * heads * head_dim + qh, 0, 2e-4 * largest_v);
    }
  }
}

TEST_CASE("head agrees with the double-precision oracle") {
  Random random(14);
  for (int dim : {4, 36, 256, 260, 1028}) {
    const int vocab = 37;
    const DenseData w(random, vocab, dim, DenseType::kBF16);
    const std::vector<float> x = random.normals(static_cast<size_t>(dim), 5.0f);
    const std::vector<float> gain = gains(random, dim);
    double squares = 0;
    for (float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
    const double r = 1 / std::sqrt(squares / dim + 1e-5);
    std::vector<double> normed;
    for (int i = 0; i < dim; ++i) {
      normed.push_back(static_cast<double>(gain[static_cast<size_t>(i)]) *
                       static_cast<double>(x[static_cast<size_t>(i)]) * r);
    }
    std::vector<double> logits;
    double absolute = 0;
    for (int v = 0; v < vocab; ++v) {
      double sum = 0;
      double sum_of_sizes = 0;
      for (int i = 0; i < dim; ++i) {
        const double term = static_cast<double>(widen(w.matrix.data, DenseType::kBF16,
                                                      static_cast<size_t>(v * dim + i))) *
                            normed[static_cast<size_t>(i)];
        sum += term;
        sum_of_sizes += std::fabs(term);
      }
      logits.push_back(sum);
      absolute = std::max(absolute, sum_of_sizes);
    }
    const int32_t row = 0;
    std::vector<float> actual_normed(static_cast<size_t>(dim));
    std::vector<float> actual(static_cast<size_t>(vocab));
    int32_t argmax = -1;
    int32_t fault = 0;
    ref::head({x.data(), &row, gain.data(), 1e-5f, w.matrix, actual_normed.data(), actual.data(),
               &argmax, nullptr, 0, 1, 0, &fault});
    require_close(normed, actual_normed.data(), 20 * kU);
    require_close(logits, actual.data(), 0, (20 + 8 + dim / 256 + 1) * kU * absolute);
    REQUIRE(argmax == std::max_element(actual.begin(), actual.end()) - actual.begin());
  }
}

}  // namespace
}  // namespace edgellm
