// RoPE of the rows of queries and keys.
#pragma once

#include <cstddef>

namespace edgellm::cpu {

// Heads [n_heads, head_dim] in place; cosine and sine [head_dim / 2] of the position.
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

}  // namespace edgellm::cpu
