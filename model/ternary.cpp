#include "model/ternary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace edgellm::model_io {
namespace {

// Values 0, 1, 2 in the low two bits of each byte become the codes 3, 0, 1; then the four bytes'
// codes move together into the low byte.
inline uint8_t gather_codes(uint32_t values) {
  const uint32_t codes = (values + 0x03030303u) & 0x03030303u;
  return static_cast<uint8_t>(codes | (codes >> 6) | (codes >> 12) | (codes >> 18));
}

}  // namespace

bool repack_row(const uint8_t* packed, int64_t packed_row, int64_t rows, int64_t cols,
                uint8_t* codes) {
  const int64_t row_bytes = (cols + 3) / 4;
  const int64_t quarter = rows / 4;
  uint32_t threes = 0;
  uint8_t* out[4];
  for (int64_t k = 0; k < 4; ++k) out[k] = codes + (packed_row + k * quarter) * row_bytes;
  const int64_t full = cols / 4;
  for (int64_t i = 0; i < full; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, packed + 4 * i, 4);
    threes |= word & (word >> 1) & 0x55555555u;
    out[0][i] = gather_codes(word & 0x03030303u);
    out[1][i] = gather_codes((word >> 2) & 0x03030303u);
    out[2][i] = gather_codes((word >> 4) & 0x03030303u);
    out[3][i] = gather_codes((word >> 6) & 0x03030303u);
  }
  if (full < row_bytes) {
    // Columns beyond the end: value 1, which is the code 0.
    uint32_t word = 0x55555555u;
    std::memcpy(&word, packed + 4 * full, static_cast<size_t>(cols - 4 * full));
    threes |= word & (word >> 1) & 0x55555555u;
    for (int k = 0; k < 4; ++k) out[k][full] = gather_codes((word >> (2 * k)) & 0x03030303u);
  }
  return threes == 0;
}

std::optional<InvalidCode> find_invalid_code(const uint8_t* packed, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c) {
    for (int k = 0; k < 4; ++k) {
      if (((packed[c] >> (2 * k)) & 3) == 3) return InvalidCode{c, k};
    }
  }
  return std::nullopt;
}

void MasterStatistics::add(const float* values, size_t n) {
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    finite &= (std::bit_cast<uint32_t>(values[i]) & 0x7F800000u) != 0x7F800000u;
  }
  finite_ = finite_ && finite;
  double sum = sum_;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(std::fabs(values[i]));
  sum_ = sum;
  n_ += n;
  for (size_t i = 0; single_ && i < n; ++i) {
    const float magnitude = std::fabs(values[i]);
    if (magnitude == 0 || magnitude == magnitude_) continue;
    single_ = magnitude_ == 0;
    magnitude_ = magnitude;
  }
}

std::optional<float> MasterStatistics::single_magnitude() const {
  if (single_ && magnitude_ != 0) return magnitude_;
  return std::nullopt;
}

float MasterStatistics::inverse_scale() const {
  // Every non-zero value of such a matrix becomes +-1 or, where 1 / magnitude overflows, +-infinity
  // (and 0 a NaN, which is neither above 0.5 nor below -0.5): the codes are the signs.
  if (keeps_magnitude()) return 1.0f / magnitude_;
  const auto mean = static_cast<float>(sum_ / static_cast<double>(n_));
  return 1.0f / std::max(mean, 1e-5f);
}

float MasterStatistics::multiplier() const {
  return keeps_magnitude() ? magnitude_ : 1.0f / inverse_scale();
}

void quantise_row(const float* values, int64_t cols, float inverse_scale, uint8_t* codes) {
  // Round half to even, then clamp to one: beyond 0.5 is +-1, 0.5 itself rounds to 0.
  const auto code = [&](int64_t c) {
    const float scaled = values[c] * inverse_scale;
    const int value = static_cast<int>(scaled > 0.5f) - static_cast<int>(scaled < -0.5f);
    return static_cast<unsigned>(value) & 3u;
  };
  for (int64_t c = 0; c < cols; c += 4) {
    unsigned byte = 0;
    for (int64_t i = c; i < std::min(c + 4, cols); ++i) byte |= code(i) << (2 * (i - c));
    codes[c / 4] = static_cast<uint8_t>(byte);
  }
}

}  // namespace edgellm::model_io
