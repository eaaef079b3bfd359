// Ternary matrices: from the packed layout of Hugging Face and from float masters to the canonical
// codes of a `.tmac2` file (docs/format.md, "Sections").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace edgellm::model_io {

// Packed rows as Hugging Face stores them: byte [r, c] of [rows / 4, cols] holds, two bits each
// from the low end, the values + 1 of rows r, r + R, r + 2R, r + 3R with R = rows / 4.
//
// Writes packed row `packed_row` into its four rows of `codes` ([rows, ceil(cols / 4)]). False
// where a value is 3, which is none of the three.
bool repack_row(const uint8_t* packed, int64_t packed_row, int64_t rows, int64_t cols,
                uint8_t* codes);

// Column of the first value 3 in a packed row, with which of its four rows has it.
struct InvalidCode {
  int64_t column = 0;
  int quarter = 0;
};
std::optional<InvalidCode> find_invalid_code(const uint8_t* packed, int64_t cols);

// What one pass over a master matrix must find out before it can be quantised. Values arrive in
// ascending order, in any pieces.
class MasterStatistics {
 public:
  // What becomes of masters that are ternary times a constant.
  enum class Constant : uint8_t {
    kIsMultiplier,  // the constant is kept
    kIsIgnored,     // the multiplier is mean|w| as of any other masters, less than the constant
  };
  explicit MasterStatistics(Constant constant = Constant::kIsMultiplier) : constant_(constant) {}

  void add(const float* values, size_t n);

  bool all_finite() const { return finite_; }
  // The matrix holds no non-zero magnitude but this one: it is ternary times a constant.
  std::optional<float> single_magnitude() const;
  // s of code = clamp(round_half_even(w * s)), and the multiplier 1 / s.
  float inverse_scale() const;
  float multiplier() const;

 private:
  bool keeps_magnitude() const {
    return constant_ == Constant::kIsMultiplier && single_magnitude().has_value();
  }

  Constant constant_;
  double sum_ = 0;  // of |w|
  uint64_t n_ = 0;
  float magnitude_ = 0;  // the first that is not zero
  bool single_ = true;
  bool finite_ = true;
};

// One row of masters to codes, padded with zero codes to a byte.
void quantise_row(const float* values, int64_t cols, float inverse_scale, uint8_t* codes);

}  // namespace edgellm::model_io
