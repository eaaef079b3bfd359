// What happens to a row of queries, keys and values after their products: RoPE, and the append to
// the cache.
#pragma once

#include <cstddef>

#include "kernels/canonical.h"
#include "kernels/cpu/primitives.h"

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

// Writes one position's keys (transposed within the tile) and values into the cache.
inline void append_row(const KvCache& kv, int sequence, int position, const float* k,
                       const float* v) {
  if (kv.type == KvType::kF16) {
    append_row<uint16_t>(kv, sequence, position, k, v, to_half);
  } else {
    append_row<float>(kv, sequence, position, k, v, [](float value) { return value; });
  }
}

}  // namespace edgellm::cpu
