#include "model/import/ternary_survey.h"

#include <algorithm>

#include "model/float_bits.h"

namespace edgellm::model_io {

std::string TernarySurvey::add_row(const float* values) {
  for (int64_t begin = 0; begin < cols_; begin += kScaleGroup) {
    const int64_t end = std::min(begin + kScaleGroup, cols_);
    float magnitude = 0;
    for (int64_t c = begin; c < end; ++c) {
      const float found = std::fabs(values[c]);
      if (found == 0 || found == magnitude) continue;
      if (magnitude != 0) {
        return "row " + std::to_string(magnitudes_.size() / groups()) + " holds " +
               std::to_string(magnitude) + " and " + std::to_string(found) + " in columns " +
               std::to_string(begin) + " to " + std::to_string(end - 1);
      }
      magnitude = found;
    }
    magnitudes_.push_back(magnitude);
  }
  return "";
}

// The magnitude that groups begin .. end - 1 share, 0 where they hold nothing else.
std::optional<float> TernarySurvey::single_magnitude(size_t begin, size_t end) const {
  float magnitude = 0;
  for (size_t i = begin; i < end; ++i) {
    if (magnitudes_[i] == 0 || magnitudes_[i] == magnitude) continue;
    if (magnitude != 0) return std::nullopt;
    magnitude = magnitudes_[i];
  }
  return magnitude;
}

ScalePlan TernarySurvey::plan() const {
  if (single_magnitude(0, magnitudes_.size())) return {};
  bool by_rows = true;
  for (size_t i = 0; by_rows && i < magnitudes_.size(); i += groups()) {
    by_rows = single_magnitude(i, i + groups()).has_value();
  }
  if (by_rows) return {ScaleShape::kRows, DType::kF32};
  const bool as_f16 = std::all_of(magnitudes_.begin(), magnitudes_.end(), [](float value) {
    return value <= 65504.0f && f16_to_float(exact_f16(value)) == value;
  });
  return {ScaleShape::kGroups, as_f16 ? DType::kF16 : DType::kF32};
}

std::vector<float> TernarySurvey::scales() const {
  const ScaleShape shape = plan().shape;
  if (shape == ScaleShape::kGroups) return magnitudes_;
  const size_t step = shape == ScaleShape::kOne ? magnitudes_.size() : groups();
  std::vector<float> scales;
  for (size_t i = 0; i < magnitudes_.size(); i += step) {
    scales.push_back(*single_magnitude(i, i + step));
  }
  return scales;
}

void code_signs(const float* values, int64_t cols, uint8_t* codes) {
  for (int64_t c = 0; c < cols; c += 4) {
    unsigned byte = 0;
    for (int64_t i = c; i < std::min(c + 4, cols); ++i) {
      const unsigned code = values[i] > 0 ? 1u : values[i] < 0 ? 3u : 0u;
      byte |= code << (2 * (i - c));
    }
    codes[c / 4] = static_cast<uint8_t>(byte);
  }
}

}  // namespace edgellm::model_io
