// Which scales a matrix of ordinary numbers has if it is a ternary one: a checkpoint of a ternary
// model that was saved as floats.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/layout.h"

namespace edgellm::model_io {

class TernarySurvey {
 public:
  // `rows` is 0 until add_row() was called.
  explicit TernarySurvey(int64_t cols) : cols_(cols) {}

  // Of finite values. Returns what is wrong with the row, empty where each group of kScaleGroup
  // values has one magnitude besides 0.
  std::string add_row(const float* values);

  // The fewest scales that hold the matrix, and the dtype that holds them exactly.
  ScalePlan plan() const;
  // Of a matrix as plan() has it: [1], [rows] or [rows, groups]; 0 where all values are 0.
  std::vector<float> scales() const;

 private:
  size_t groups() const { return static_cast<size_t>(group_count(cols_)); }
  std::optional<float> single_magnitude(size_t begin, size_t end) const;

  int64_t cols_;
  std::vector<float> magnitudes_;  // [rows, groups]
};

// The signs of a row as codes of t2, padded with zero codes to a byte.
void code_signs(const float* values, int64_t cols, uint8_t* codes);

}  // namespace edgellm::model_io
