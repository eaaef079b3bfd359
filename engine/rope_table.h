// cos and sin of every RoPE angle, made once on the host for every backend, so that all of them
// rotate by the same bits: angle = float32(position) * inv_freq, cos = float32(cos(double(angle)))
// * attention factor.
#pragma once

#include <span>
#include <vector>

namespace edgellm {

class RopeTable {
 public:
  RopeTable(std::span<const float> inv_freq, float attention_factor)
      : inv_freq_(inv_freq), attention_factor_(attention_factor) {}

  // Makes sure that the table holds positions 0 .. positions - 1. Earlier pointers become invalid.
  void grow(int positions);

  const float* cosine() const { return cosine_.data(); }  // [positions, head_dim / 2]
  const float* sine() const { return sine_.data(); }
  size_t bytes() const { return (cosine_.capacity() + sine_.capacity()) * sizeof(float); }

 private:
  std::span<const float> inv_freq_;  // [head_dim / 2], of the model
  float attention_factor_;           // of every value (YaRN)
  std::vector<float> cosine_;
  std::vector<float> sine_;
  int positions_ = 0;
};

}  // namespace edgellm
