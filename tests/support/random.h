// Seeded random test data: the same numbers on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace edgellm::test {

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(uniform());
  }
  // About N(0, 1): twelve uniforms.
  float normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return static_cast<float>(sum);
  }
  std::vector<float> normals(size_t n, float scale = 1.0f) {
    std::vector<float> values(n);
    for (float& v : values) v = scale * normal();
    return values;
  }

 private:
  uint64_t state_;
};

}  // namespace edgellm::test
