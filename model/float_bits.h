// Conversions between float32 and the 16-bit formats, exact or rounded to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace edgellm::model_io {

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// For finite values.
inline uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7FFF;
  if (magnitude >= 0x7C00) {  // infinity or NaN
    return std::bit_cast<float>(sign | 0x7F800000 | ((magnitude & 0x3FF) << 13));
  }
  if (magnitude >= 0x0400) {  // normal: rebias the exponent from 15 to 127
    return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  }
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;  // exact
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

// For values that an f16 holds exactly and that are finite.
inline uint16_t exact_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude >= 0x38800000) {  // 2^-14 and above: rebias the exponent from 127 to 15
    return static_cast<uint16_t>(sign | ((magnitude - (112u << 23)) >> 13));
  }
  return static_cast<uint16_t>(sign |
                               static_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p24f));
}

}  // namespace edgellm::model_io
