// Attention in integers: its pieces against libm and their own bounds, and the whole of it against
// softmax in double precision, beside keys and values in half precision.
#include "kernels/integer_attention.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pool.h"
#include "kernels/ref/integer_attention.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_CASE("a turned row turned again is the row, times the block") {
  Random random(1);
  for (const auto& [head_dim, block] :
       {std::pair{2, 2}, {20, 4}, {64, 64}, {80, 16}, {96, 32}, {100, 4}, {112, 16}, {256, 256}}) {
    INFO("head_dim " << head_dim);
    REQUIRE(turn_block(head_dim) == block);
    // Small integers: every sum is exact.
    std::vector<float> row(static_cast<size_t>(head_dim));
    for (float& value : row) value = static_cast<float>(random.below(2001) - 1000);
    std::vector<float> turned = row;
    turn(turned.data(), head_dim);
    REQUIRE(turned != row);
    turn(turned.data(), head_dim);
    for (size_t i = 0; i < row.size(); ++i)
      REQUIRE(turned[i] == static_cast<float>(block) * row[i]);
  }
}

TEST_CASE("two digits make every code") {
  const int largest = static_cast<int>(kMaxQueryCode);
  for (int code = -largest; code <= largest; ++code) {
    const Digits digits = digits_of(code);
    REQUIRE(256 * digits.high + digits.low == code);
    REQUIRE(std::abs(digits.high) <= 127);
    REQUIRE(digits.low >= -128);
    REQUIRE(digits.low <= 127);
  }
}

TEST_CASE("a row's largest magnitude has at most the largest code, at any size") {
  for (const float largest : {max_code(KvType::kI8), max_code(KvType::kI16)}) {
    for (uint64_t bits = 1; bits < 0x7f800000u; bits += 997) {
      const float amax = bits_to_float(static_cast<uint32_t>(bits));
      REQUIRE(std::rint(amax * code_unit(amax, largest, false).per_unit) <= largest);
      const CodeUnit unit = code_unit(amax, largest, true);
      REQUIRE(std::rint(amax * unit.per_unit) <= largest);
      REQUIRE(std::isfinite(unit.per_unit));
      // The unit is a whole number of eighths, and at most an eighth above what is needed.
      REQUIRE(unit.unit * 8.0f == std::rint(unit.unit * 8.0f));
      if (amax > 1e-7f) REQUIRE(std::rint(amax * unit.per_unit) >= std::floor(largest / 1.0906f));
      const double exact = std::exp2(-static_cast<double>(unit.unit));
      REQUIRE(std::fabs(static_cast<double>(unit.per_unit) / exact - 1) < 2e-7);
    }
  }
}

TEST_CASE("a weight is 2^(score - max), 1 at the most and 0 far below") {
  for (const float max : {-300.0f, -17.0f, 0.0f, 1.0f, 90.0f, 4000.0f}) {
    REQUIRE(integer_weight(max, max) == 1.0f);
    REQUIRE(integer_weight(max - 127.0f, max) == 0.0f);
    REQUIRE(integer_weight(max - 1e6f, max) == 0.0f);
    REQUIRE(integer_weight(-kInfinity, max) == 0.0f);
    REQUIRE(integer_weight(std::nanf(""), max) == 0.0f);
    REQUIRE(weight_code(integer_weight(max, max)) == 65535);
    for (int i = 0; i < 40000; ++i) {
      const float score = max - 0.0031f * static_cast<float>(i);
      const float weight = integer_weight(score, max);
      const double exact = std::exp2(static_cast<double>(score) - static_cast<double>(max));
      // The polynomial 1.0e-4; a score of this size is rounded to 2^-18 of a power of two at most.
      REQUIRE(std::fabs(static_cast<double>(weight) / exact - 1) < 1.1e-4);
      REQUIRE(weight_code(weight) ==
              static_cast<uint32_t>(std::rint(static_cast<double>(weight) * 65535.0)));
    }
  }
  REQUIRE(power_of_two(0.0f) == 1.0f);
  REQUIRE(power_of_two(-3.0f) == 0.125f);
  REQUIRE(power_of_two(-kInfinity) == std::ldexp(1.0f, -126));
  REQUIRE(power_of_two(std::nanf("")) == std::ldexp(1.0f, -126));
}

// ---- The whole ----------------------------------------------------------------------------------

struct Shape {
  int heads, kv_heads, head_dim, positions;
};

// One row of queries at the last position, over keys and values of all positions.
struct Rows {
  Shape shape;
  std::vector<float> q, k, v;

  Rows(Random& random, const Shape& of) : shape(of) {
    q = random.normals(count(of.heads));
    k = random.normals(count(of.kv_heads) * static_cast<size_t>(of.positions));
    v = random.normals(k.size());
  }

  // Channel `d` of every key `factor` times as large, and of every query as much smaller: the same
  // scores.
  void scale_key_channel(int d, float factor) {
    for (size_t i = static_cast<size_t>(d); i < k.size(); i += width()) k[i] *= factor;
    for (size_t i = static_cast<size_t>(d); i < q.size(); i += width()) q[i] /= factor;
  }

  // Channel `d` of every value `factor` times as large.
  void scale_value_channel(int d, float factor) {
    for (size_t i = static_cast<size_t>(d); i < v.size(); i += width()) v[i] *= factor;
  }

  size_t width() const { return static_cast<size_t>(shape.head_dim); }
  size_t count(int n_heads) const { return static_cast<size_t>(n_heads) * width(); }
  // Row of position p and kv head h in k and v.
  size_t at(int p, int h) const {
    return (static_cast<size_t>(p) * static_cast<size_t>(shape.kv_heads) + static_cast<size_t>(h)) *
           width();
  }

  CacheData cache(Random& random, KvType type) const {
    CacheData data(random, 1, shape.positions, 64, shape.kv_heads, shape.head_dim, type);
    for (int p = 0; p < shape.positions; ++p) {
      for (int h = 0; h < shape.kv_heads; ++h) {
        if (is_coded(type)) {
          REQUIRE(ref::store_codes(data.cache, 0, p, h, &k[at(p, h)], &v[at(p, h)]));
          continue;
        }
        for (int d = 0; d < shape.head_dim; ++d) {
          const size_t i = data.cache.tile_offset(0, p, h) + ref::key_index(p, d, shape.head_dim);
          const size_t from = at(p, h) + static_cast<size_t>(d);
          static_cast<float*>(data.cache.k)[i] = k[from];
          static_cast<float*>(data.cache.v)[i] = v[from];
        }
      }
    }
    return data;
  }

  // Keys and values rounded to half precision.
  Rows as_f16() const {
    Rows rounded(*this);
    for (float& value : rounded.k) value = from_half(to_half(value));
    for (float& value : rounded.v) value = from_half(to_half(value));
    return rounded;
  }

  AttentionArgs args(const CacheData& data, const int32_t* sequence, const int32_t* position,
                     float* out) const {
    AttentionArgs args;
    args.q = q.data();
    args.kv = data.cache;
    args.places = {sequence, position};
    args.out = out;
    args.rows = 1;
    args.heads = shape.heads;
    return args;
  }

  std::vector<float> by_ref(Random& random, KvType type) const {
    const CacheData data = cache(random, type);
    const int32_t sequence = 0;
    const int32_t position = shape.positions - 1;
    std::vector<float> out(q.size());
    ref::attention(args(data, &sequence, &position, out.data()));
    return out;
  }

  std::vector<double> exact() const {
    std::vector<double> out(q.size(), 0.0);
    const int group = shape.heads / shape.kv_heads;
    for (int h = 0; h < shape.heads; ++h) {
      std::vector<double> weight(static_cast<size_t>(shape.positions));
      double largest = -1e300;
      for (int p = 0; p < shape.positions; ++p) {
        double score = 0;
        for (size_t d = 0; d < width(); ++d) {
          score +=
              static_cast<double>(q[count(h) + d]) * static_cast<double>(k[at(p, h / group) + d]);
        }
        weight[static_cast<size_t>(p)] = score / std::sqrt(static_cast<double>(shape.head_dim));
        largest = std::max(largest, weight[static_cast<size_t>(p)]);
      }
      double sum = 0;
      for (double& w : weight) sum += w = std::exp(w - largest);
      for (int p = 0; p < shape.positions; ++p) {
        for (size_t d = 0; d < width(); ++d) {
          out[count(h) + d] +=
              weight[static_cast<size_t>(p)] / sum * static_cast<double>(v[at(p, h / group) + d]);
        }
      }
    }
    return out;
  }
};

// Channels of values that are `factor` times as large, hence those of the result.
struct ValueOutliers {
  int channels[2];
  float factor;
};

// The error of the result relative to its own length, both with their outliers divided out.
double distance(const std::vector<float>& out, const std::vector<double>& exact, int head_dim,
                const ValueOutliers& outliers) {
  double error = 0;
  double length = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const int channel = static_cast<int>(i) % head_dim;
    const bool outlier = channel == outliers.channels[0] || channel == outliers.channels[1];
    const double factor = outlier ? static_cast<double>(outliers.factor) : 1;
    const double difference = (static_cast<double>(out[i]) - exact[i]) / factor;
    error += difference * difference;
    length += exact[i] / factor * (exact[i] / factor);
  }
  return std::sqrt(error / length);
}

TEST_CASE("attention over codes is nearer to exact softmax than over f16, key outliers included") {
  for (const Shape& shape : {Shape{6, 2, 64, 700}, Shape{4, 1, 128, 1500}, Shape{5, 5, 80, 300},
                             Shape{2, 1, 100, 129}, Shape{3, 1, 64, 1}}) {
    for (const auto& [outlier, value_outlier] :
         {std::pair{1.0f, 1.0f}, {8.0f, 1.0f}, {20.0f, 1.0f}, {20.0f, 20.0f}}) {
      Random random(static_cast<uint64_t>(shape.head_dim + shape.positions));
      Rows rows(random, shape);
      rows.scale_key_channel(3, outlier);
      rows.scale_key_channel(shape.head_dim / 2 + 3, outlier);
      const ValueOutliers of_values{{5, shape.head_dim / 2 + 8}, value_outlier};
      for (const int d : of_values.channels) rows.scale_value_channel(d, value_outlier);
      const std::vector<double> exact = rows.exact();
      const auto error = [&](const Rows& of, KvType type) {
        return distance(of.by_ref(random, type), exact, shape.head_dim, of_values);
      };
      const double f16 = error(rows.as_f16(), KvType::kF32);
      const double i16 = error(rows, KvType::kI16);
      const double i8 = error(rows, KvType::kI8);
      INFO("head_dim " << shape.head_dim << ", positions " << shape.positions
                       << ", two key channels " << outlier << " times as large, two of values "
                       << value_outlier << ": f16 " << f16 << ", i16 " << i16 << ", i8 " << i8);
      CHECK(i16 < 1e-3);
      // A normal row's largest is about 2.6 rms: a value of 8 bits is off by 2.6 / 127 / sqrt(12) =
      // 6e-3 of it, and the weights by as much again. Outliers double it. Blocks of four hardly
      // spread them. Outliers of values raise the unit of all others, f16's rounding is relative:
      // there i16 may be a little farther than f16.
      const bool spread = turn_block(shape.head_dim) >= 16;
      const double allowed = value_outlier > 1 ? 1.4 : 1.0;
      CHECK(i8 < (spread ? 2e-2 : 4e-2) * allowed);
      if (spread) CHECK(i16 < f16 * allowed);
    }
  }
}

TEST_CASE("the largest codes and weights do not overflow a sum") {
  const auto isas = cpu::usable_isas();
  for (const int head_dim : {64, kMaxIntegerHeadDim}) {
    for (const float sign : {1.0f, -1.0f}) {
      Random random(5);
      Rows rows(random, {1, 1, head_dim, 2 * kIntegerChunk});
      // Rows whose turn is the same number everywhere: all codes are the largest.
      std::vector<float> turned_ones(static_cast<size_t>(head_dim), 1.0f);
      turn(turned_ones.data(), head_dim);
      for (size_t i = 0; i < rows.k.size(); ++i) {
        rows.k[i] = sign * turned_ones[i % rows.width()];
      }
      for (size_t i = 0; i < rows.q.size(); ++i) rows.q[i] = turned_ones[i];
      for (const KvType type : {KvType::kI16, KvType::kI8}) {
        // Values turn to max_code(): their unit is 1.
        const float size = max_code(type) / static_cast<float>(head_dim);
        for (size_t i = 0; i < rows.v.size(); ++i) rows.v[i] = size * turned_ones[i % rows.width()];
        const std::vector<float> out = rows.by_ref(random, type);
        for (size_t i = 0; i < out.size(); ++i) {
          REQUIRE(out[i] == Approx(rows.v[i]).epsilon(2e-4).margin(1e-3));
        }
        const CacheData for_cpu = rows.cache(random, type).reordered_for_cpu();
        const int32_t sequence = 0;
        const int32_t position = rows.shape.positions - 1;
        for (const cpu::Primitives* isa : isas) {
          INFO(isa->name << ", head_dim " << head_dim << ", digits " << kv_element_bytes(type));
          cpu::Pool pool(1, *isa);
          std::vector<float> actual(out.size());
          cpu::attention(rows.args(for_cpu, &sequence, &position, actual.data()), pool);
          REQUIRE(actual == out);
        }
      }
    }
  }
}

TEST_CASE("rows that are not finite set the fault, leave finite units, and give NaN") {
  for (const KvType type : {KvType::kI16, KvType::kI8}) {
    Random random(6);
    const Rows rows(random, {2, 1, 64, 3});
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      Rows with_bad_query = rows;
      with_bad_query.q[11] = bad;
      const std::vector<float> out = with_bad_query.by_ref(random, type);
      REQUIRE(std::isnan(out[0]));
      REQUIRE(std::isfinite(out[64]));

      for (const bool bad_key : {true, false}) {
        Rows with_bad_row = rows;
        (bad_key ? with_bad_row.k : with_bad_row.v)[64 + 11] = bad;
        const CacheData before(random, 1, 3, 64, 1, 64, type);
        const int32_t sequences[] = {0, 0, 0};
        const int32_t positions[] = {0, 1, 2};
        std::vector<float> q(3 * rows.q.size(), 1.0f);
        std::vector<float> expected(q.size());
        int32_t fault = 0;
        AttentionArgs args{q.data(),
                           with_bad_row.k.data(),
                           with_bad_row.v.data(),
                           before.cache,
                           {sequences, positions},
                           expected.data(),
                           3,
                           2,
                           /*layer=*/4,
                           &fault};
        const CacheData by_ref(before);
        args.kv = by_ref.cache;
        ref::attention(args);
        REQUIRE(fault == 5);
        for (const float unit : by_ref.units) REQUIRE(std::isfinite(unit));
        for (const float value : expected) REQUIRE(std::isfinite(value));
        const CacheData expected_for_cpu = by_ref.reordered_for_cpu();
        for (const cpu::Primitives* isa : cpu::usable_isas()) {
          INFO(isa->name << ", digits " << kv_element_bytes(type) << ", bad " << bad);
          cpu::Pool pool(1, *isa);
          const CacheData by_cpu = before.reordered_for_cpu();
          std::vector<float> actual(expected.size());
          fault = 0;
          args.kv = by_cpu.cache;
          args.out = actual.data();
          cpu::attention(args, pool);
          REQUIRE(fault == 5);
          REQUIRE(by_cpu.k == expected_for_cpu.k);
          REQUIRE(by_cpu.v == expected_for_cpu.v);
          REQUIRE(by_cpu.units == expected_for_cpu.units);
          REQUIRE(actual == expected);
        }
      }
    }
  }
}

TEST_CASE("the number of threads does not change a bit, however chunks are shared out") {
  // Depths about chunk borders, for one row and for some rows of two sequences.
  Random random(8);
  const HeadShape shape{6, 2, 64};
  for (const KvType type : {KvType::kI16, KvType::kI8}) {
    for (const int depth : {1, 127, 128, 129, 700, 1281, 16384}) {
      CacheData cache(random, 2, depth + 3, 64, shape.kv_heads, shape.head_dim, type);
      std::vector<int32_t> sequence, position;
      for (int p = 0; p < depth; ++p) {
        for (int s = 0; s < 2; ++s) {
          for (int h = 0; h < shape.kv_heads; ++h) {
            const std::vector<float> row = random.normals(2 * 64);
            REQUIRE(ref::store_codes(cache.cache, s, p, h, &row[0], &row[64]));
          }
        }
      }
      for (const std::vector<int32_t>& sequences : {std::vector<int32_t>{0}, {1, 0, 0, 0}}) {
        std::vector<int32_t> positions(sequences.size(), depth);
        for (size_t i = 1; i < positions.size(); ++i) {
          if (sequences[i] == sequences[i - 1]) positions[i] = positions[i - 1] + 1;
        }
        const int rows = static_cast<int>(sequences.size());
        const std::vector<float> q = random.normals(sequences.size() * shape.q_width());
        const std::vector<float> k = random.normals(sequences.size() * shape.kv_width());
        const std::vector<float> v = random.normals(k.size());
        std::vector<float> expected(q.size());
        int32_t fault = 0;
        const CacheData by_ref(cache);
        AttentionArgs args{q.data(),
                           k.data(),
                           v.data(),
                           by_ref.cache,
                           {sequences.data(), positions.data()},
                           expected.data(),
                           rows,
                           shape.heads,
                           0,
                           &fault};
        ref::attention(args);
        for (const int threads : {1, 2, 3, 7}) {
          INFO(threads << " threads, depth " << depth << ", rows " << rows);
          cpu::Pool pool(threads, cpu::primitives());
          const CacheData by_cpu = cache.reordered_for_cpu();
          std::vector<float> actual(q.size());
          args.kv = by_cpu.cache;
          args.out = actual.data();
          cpu::attention(args, pool);
          REQUIRE(actual == expected);
        }
      }
    }
  }
}

}  // namespace
}  // namespace edgellm
