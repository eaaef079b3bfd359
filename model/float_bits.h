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

// Beyond the range of f16 an infinity. Not for NaN.
inline uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // 65520 and above
  if (magnitude >= 0x38800000) {  // 2^-14 and above: round 13 bits off, rebias the exponent
    const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
  }
  // Subnormal: at 0.5 the step of a float32 is 2^-24, that of a subnormal f16.
  const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
  return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3F000000u));
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
