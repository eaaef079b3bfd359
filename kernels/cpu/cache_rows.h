// What happens to a row of queries, keys and values after their products: RoPE, and the append to
// the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/canonical.h"
#include "kernels/cpu/primitives.h"
#include "kernels/integer_attention.h"

namespace edgellm::cpu {

// RoPE of heads [n_heads, head_dim] in place; cosine and sine [head_dim / 2] of the position.
inline void rotate(float* heads, int n_heads, int head_dim, const float* cosine,
                   const float* sine) {
  const int half = head_dim / 2;
  for (int h = 0; h < n_heads; ++h) {
    float* low = heads + static_cast<size_t>(h) * static_cast<size_t>(head_dim);
    float* high = low + half;
    for (int i = 0; i < half; ++i) {
      const float a = low[i];
      const float b = high[i];
      low[i] = a * cosine[i] - b * sine[i];
      high[i] = b * cosine[i] + a * sine[i];
    }
  }
}

template <class Element, class Convert>
void append_row(const KvCache& kv, int sequence, int position, const float* k, const float* v,
                Convert convert) {
  const int head_dim = kv.head_dim;
  for (int h = 0; h < kv.kv_heads; ++h) {
    const size_t tile = kv.tile_offset(sequence, position, h);
    Element* keys = static_cast<Element*>(kv.k) + tile;
    Element* values = static_cast<Element*>(kv.v) + tile;
    const size_t head = static_cast<size_t>(h) * static_cast<size_t>(head_dim);
    for (int d = 0; d < head_dim; ++d) {
      const auto element = head + static_cast<size_t>(d);
      keys[key_index(position, d)] = convert(k[element]);
      values[value_index(position, d, head_dim)] = convert(v[element]);
    }
  }
}

// The largest magnitude of n values, NaN or infinity where one of them is not finite.
inline float largest_magnitude(const float* values, int n) {
  // As integers, magnitudes have their own order, with infinity and NaN above all.
  uint32_t largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, float_to_bits(values[i]) & 0x7fffffffu);
  return bits_to_float(largest);
}

// rint(value * per_unit) of a product below 2^22.
inline int16_t code_of(float value, float per_unit) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  return static_cast<int16_t>(float_to_bits(value * per_unit + kRound));
}

// Turns keys and values [kv_heads, head_dim] in place, writes their codes and units. False: a value
// is not finite.
inline bool append_codes(const KvCache& kv, int sequence, int position, float* k, float* v) {
  const int head_dim = kv.head_dim;
  bool finite = true;
  for (int h = 0; h < kv.kv_heads; ++h, k += head_dim, v += head_dim) {
    const size_t tile = kv.tile_offset(sequence, position, h);
    turn(k, head_dim);
    turn(v, head_dim);
    const float k_amax = largest_magnitude(k, head_dim);
    const float v_amax = largest_magnitude(v, head_dim);
    const bool k_finite = std::isfinite(k_amax);
    const bool v_finite = std::isfinite(v_amax);
    finite = finite && k_finite && v_finite;
    const RowUnit k_unit = row_unit(k_finite ? k_amax : 0.0f);
    const ValueUnit v_unit = value_unit(v_finite ? v_amax : 0.0f);
    float* units = kv.tile_units(tile) + position % kAttentionChunk;
    units[0] = k_unit.unit;
    units[kAttentionChunk] = v_unit.log2_unit;
    units[2 * kAttentionChunk] = v_unit.per_unit;
    int16_t* keys = static_cast<int16_t*>(kv.k) + tile;
    int16_t* values = static_cast<int16_t*>(kv.v) + tile;
    for (int d = 0; d < head_dim; ++d) {
      keys[key_code_index(position, d)] = k_finite ? code_of(k[d], k_unit.per_unit) : int16_t{0};
      values[value_code_index(position, d, head_dim)] =
          v_finite ? code_of(v[d], v_unit.per_unit) : int16_t{0};
    }
  }
  return finite;
}

// Writes one position's keys (transposed within the tile) and values into the cache, whose type is
// not i16.
inline void append_row(const KvCache& kv, int sequence, int position, const float* k,
                       const float* v) {
  if (kv.type == KvType::kF16) {
    append_row<uint16_t>(kv, sequence, position, k, v, to_half);
  } else {
    append_row<float>(kv, sequence, position, k, v, [](float value) { return value; });
  }
}

}  // namespace edgellm::cpu
