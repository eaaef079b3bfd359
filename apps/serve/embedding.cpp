#include "apps/serve/embedding.h"

#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace edgellm::serve {

Pooling pooling_of(const std::string& name) {
  if (name == "mean") return Pooling::kMean;
  if (name == "last") return Pooling::kLast;
  throw Error(ExitCode::kUsage,
              "pooling is \"" + printable(name, 40) + "\", expected mean or last");
}

void EmbeddingPool::add(std::span<const float> hidden) {
  if (pooling_ == Pooling::kLast) sum_.clear();
  sum_.resize(hidden.size());
  for (size_t i = 0; i < hidden.size(); ++i) sum_[i] += static_cast<double>(hidden[i]);
}

// A mean and a sum have the same direction.
std::vector<float> EmbeddingPool::embedding() const {
  double square = 0;
  for (const double value : sum_) square += value * value;
  const double scale = square > 0 ? 1 / std::sqrt(square) : 0;
  std::vector<float> values;
  values.reserve(sum_.size());
  for (const double value : sum_) values.push_back(static_cast<float>(value * scale));
  return values;
}

}  // namespace edgellm::serve
