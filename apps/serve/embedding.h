// Embeddings of texts: the hidden states that a model gives the tokens of a prompt, pooled into one
// vector and scaled to the length 1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace edgellm::serve {

enum class Pooling : uint8_t {
  kMean,  // of all tokens
  kLast,  // the last token's
};

// "mean" or "last". Throws Error (kUsage) for another name.
Pooling pooling_of(const std::string& name);

// Takes the final norm's outputs of a prompt, token by token. Sums are made in double, in the order
// of the tokens, so that CPU and GPU give the same bits.
class EmbeddingPool {
 public:
  explicit EmbeddingPool(Pooling pooling) : pooling_(pooling) {}

  void add(std::span<const float> hidden);  // [dim]
  // [dim]; zeros stay zeros.
  std::vector<float> embedding() const;

 private:
  const Pooling pooling_;
  std::vector<double> sum_;
};

}  // namespace edgellm::serve
