#include "kernels/ref/integer_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/integer_attention.h"
#include "kernels/ref/ref.h"

namespace edgellm::ref {
namespace {

// NaN where a value is NaN.
float largest_magnitude(const std::vector<float>& row) {
  float amax = 0.0f;
  for (const float value : row) {
    if (std::isnan(value)) return value;
    amax = std::max(amax, std::fabs(value));
  }
  return amax;
}

std::vector<float> turned(const float* row, int n) {
  std::vector<float> result(row, row + n);
  turn(result.data(), n);
  return result;
}

int code(float value, float per_unit) { return static_cast<int>(std::rint(value * per_unit)); }

// A query's turned row in codes. The unit of a row that is not finite is NaN, and so is its result.
struct Query {
  std::vector<Digits> digits;
  float factor;

  Query(const float* row, int head_dim, KvType type)
      : digits(static_cast<size_t>(head_dim), Digits{0, 0}) {
    const std::vector<float> values = turned(row, head_dim);
    const float amax = largest_magnitude(values);
    const CodeUnit unit = code_unit(amax, kMaxQueryCode, false);
    const bool finite = std::isfinite(amax);
    factor = score_factor(finite ? unit.unit : std::numeric_limits<float>::quiet_NaN(),
                          head_scale(head_dim), type);
    if (!finite) return;
    for (size_t d = 0; d < digits.size(); ++d)
      digits[d] = digits_of(code(values[d], unit.per_unit));
  }
};

// The running result of one head of one row.
class Merge {
 public:
  explicit Merge(int head_dim) : sums_(static_cast<size_t>(head_dim), 0.0f) {}

  void add(float max, float weight_sum, const std::vector<int32_t>& sums) {
    const float larger = std::max(max_, max);
    const float a = power_of_two(max_ - larger);
    const float b = power_of_two(max - larger);
    max_ = larger;
    weight_sum_ = std::fma(weight_sum, b, weight_sum_ * a);
    for (size_t d = 0; d < sums.size(); ++d) {
      sums_[d] = std::fma(static_cast<float>(sums[d]), b, sums_[d] * a);
    }
  }

  void finish(KvType type, float* out) {
    const int head_dim = static_cast<int>(sums_.size());
    turn(sums_.data(), head_dim);
    const float factor = output_factor(weight_sum_, head_dim, type);
    for (int d = 0; d < head_dim; ++d) out[d] = sums_[static_cast<size_t>(d)] * factor;
  }

 private:
  float max_ = -std::numeric_limits<float>::infinity();
  float weight_sum_ = 0.0f;
  std::vector<float> sums_;
};

// The digits of a cached code. One of 8 bits is a high digit.
Digits cached_digits(const void* pool, KvType type, size_t index) {
  if (type == KvType::kI8) return {static_cast<const int8_t*>(pool)[index], 0};
  return digits_of(static_cast<const int16_t*>(pool)[index]);
}

void store_code(void* pool, KvType type, size_t index, int code) {
  if (type == KvType::kI8) {
    static_cast<int8_t*>(pool)[index] = static_cast<int8_t>(code);
  } else {
    static_cast<int16_t*>(pool)[index] = static_cast<int16_t>(code);
  }
}

CachedUnits units_at(const KvCache& kv, size_t tile, int position) {
  const float* units = kv.tile_units(tile) + position % kAttentionChunk;
  return {units[0], units[kAttentionChunk], units[2 * kAttentionChunk]};
}

// One row's query head over the chunk that begins at `begin`.
void add_chunk(const KvCache& kv, int sequence, int kv_head, int begin, int count,
               const Query& query, Merge& merge) {
  const int head_dim = kv.head_dim;
  std::vector<float> score(static_cast<size_t>(count));
  float max = -std::numeric_limits<float>::infinity();
  for (int j = 0; j < count; ++j) {
    const int position = begin + j;
    const size_t tile = kv.tile_offset(sequence, position, kv_head);
    int32_t high = 0;
    int32_t middle = 0;
    for (int d = 0; d < head_dim; ++d) {
      const Digits k = cached_digits(kv.k, kv.type, tile + key_index(position, d, head_dim));
      const Digits q = query.digits[static_cast<size_t>(d)];
      high += q.high * k.high;
      middle += q.high * k.low + q.low * k.high;
    }
    score[static_cast<size_t>(j)] =
        integer_score(256 * high + middle, units_at(kv, tile, position), query.factor);
    max = std::fmax(max, score[static_cast<size_t>(j)]);
  }
  max = std::ceil(max);

  float partial[kWeightPartials] = {};
  std::vector<int32_t> high(static_cast<size_t>(head_dim));
  std::vector<int32_t> middle(static_cast<size_t>(head_dim));
  for (int j = 0; j < count; ++j) {
    const int position = begin + j;
    const size_t tile = kv.tile_offset(sequence, position, kv_head);
    const float weight = integer_weight(score[static_cast<size_t>(j)], max);
    float& sum = partial[j % kWeightPartials];
    sum = std::fma(weight, units_at(kv, tile, position).value_per_unit, sum);
    const auto p = static_cast<int32_t>(weight_code(weight));
    for (int d = 0; d < head_dim; ++d) {
      const Digits v = cached_digits(kv.v, kv.type, tile + value_index(position, d, head_dim));
      high[static_cast<size_t>(d)] += (p >> 8) * v.high;
      middle[static_cast<size_t>(d)] += (p >> 8) * v.low + (p & 255) * v.high;
    }
  }
  for (int width = kWeightPartials / 2; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) partial[i] += partial[i + width];
  }
  for (size_t d = 0; d < high.size(); ++d) middle[d] += 256 * high[d];
  merge.add(max, partial[0], middle);
}

}  // namespace

bool store_codes(const KvCache& kv, int sequence, int position, int kv_head, const float* key,
                 const float* value) {
  const int head_dim = kv.head_dim;
  const std::vector<float> k = turned(key, head_dim);
  const std::vector<float> v = turned(value, head_dim);
  float k_amax = largest_magnitude(k);
  float v_amax = largest_magnitude(v);
  const bool k_finite = std::isfinite(k_amax);
  const bool v_finite = std::isfinite(v_amax);
  if (!k_finite) k_amax = 0.0f;
  if (!v_finite) v_amax = 0.0f;
  const CodeUnit k_unit = code_unit(k_amax, max_code(kv.type), false);
  const CodeUnit v_unit = code_unit(v_amax, max_code(kv.type), true);

  const size_t tile = kv.tile_offset(sequence, position, kv_head);
  float* units = kv.tile_units(tile) + position % kAttentionChunk;
  units[0] = k_unit.unit;
  units[kAttentionChunk] = v_unit.unit;
  units[2 * kAttentionChunk] = v_unit.per_unit;
  for (int d = 0; d < head_dim; ++d) {
    const auto i = static_cast<size_t>(d);
    store_code(kv.k, kv.type, tile + key_index(position, d, head_dim),
               k_finite ? code(k[i], k_unit.per_unit) : 0);
    store_code(kv.v, kv.type, tile + value_index(position, d, head_dim),
               v_finite ? code(v[i], v_unit.per_unit) : 0);
  }
  return k_finite && v_finite;
}

void integer_attention(const AttentionArgs& args) {
  const int head_dim = args.kv.head_dim;
  const int group = args.heads / args.kv.kv_heads;
  for (int row = 0; row < args.rows; ++row) {
    const int length = args.places.position[row] + 1;
    for (int h = 0; h < args.heads; ++h) {
      const size_t at =
          (static_cast<size_t>(row) * static_cast<size_t>(args.heads) + static_cast<size_t>(h)) *
          static_cast<size_t>(head_dim);
      const Query query(args.q + at, head_dim, args.kv.type);
      Merge merge(head_dim);
      for (int begin = 0; begin < length; begin += kIntegerChunk) {
        add_chunk(args.kv, args.places.sequence[row], h / group, begin,
                  std::min(kIntegerChunk, length - begin), query, merge);
      }
      merge.finish(args.kv.type, args.out + at);
    }
  }
}

}  // namespace edgellm::ref
