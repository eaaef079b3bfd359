// The scalar pieces of the canonical arithmetic (docs/numerics.md), one source for host and device.
//
// Every operation here is IEEE binary32, round to nearest even; a product and a sum are fused only
// where `fma` is written. Built with -ffp-contract=off on the host and -fmad=false on the device,
// so that both give the same bits. SIMD files (kernels/cpu/avx*.cpp) must not include this header:
// the linker keeps one copy of an inline function, and it may be the one compiled for AVX-512. They
// repeat the same operations lane by lane, and a test compares them with these.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/ops.h"

namespace edgellm {

// canonical_sum keeps this many partial sums: term i goes to partial i % kPartials.
inline constexpr int kPartials = 256;

EDGELLM_HOST_DEVICE inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

EDGELLM_HOST_DEVICE inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Floats in an order of unsigned integers: larger is larger, 0 is below every number. Not for NaN.
EDGELLM_HOST_DEVICE inline uint32_t ordered_bits(float value) {
  const uint32_t bits = float_to_bits(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
EDGELLM_HOST_DEVICE inline float from_ordered_bits(uint32_t ordered) {
  if (ordered == 0) return bits_to_float(0xff800000u);
  return bits_to_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// The parts of e^x = e 2^n: x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite: ln 2 in two parts,
// so that n * ln2_high is exact), e = e^r = 1 + r + r^2 P(r) with P fitted to minimise the relative
// error.
struct ExpParts {
  float e;
  float shifted;  // 1.5 * 2^23 + n: its low bits are n
};
inline constexpr float kExpRound = 12582912.0f;  // 1.5 * 2^23
EDGELLM_HOST_DEVICE inline ExpParts exp_parts(float x) {
  const float shifted = fmaf(x, 1.44269504f, kExpRound);
  const float n = shifted - kExpRound;
  float r = fmaf(n, -0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 0.00138131424f;
  p = fmaf(p, r, 0.00836941879f);
  p = fmaf(p, r, 0.041668456f);
  p = fmaf(p, r, 0.166665152f);
  p = fmaf(p, r, 0.49999994f);
  return {fmaf(r * r, p, r) + 1.0f, shifted};
}

// e^x within 1.01 ulp; +inf above 88.72, 0 below -87.3; exp(+-0) = 1; NaN stays NaN. 2^n by
// exponent bits.
EDGELLM_HOST_DEVICE inline float canonical_exp(float x) {
  const ExpParts parts = exp_parts(x);
  // In two steps, because 2^128 is no float although e * 2^128 can be one.
  const int32_t exponent =
      static_cast<int32_t>(float_to_bits(parts.shifted) - float_to_bits(kExpRound));
  const int32_t half = exponent >> 1;
  const float scale1 = bits_to_float(static_cast<uint32_t>(half + 127) << 23);
  const float scale2 = bits_to_float(static_cast<uint32_t>(exponent - half + 127) << 23);
  // Chosen last, so that the lanes of a GPU need not part.
  return x > 88.72f ? bits_to_float(0x7f800000u) : x < -87.3f ? 0.0f : parts.e * scale1 * scale2;
}

// float32 to IEEE half precision: clamped to +-65504, round to nearest even, subnormals kept. NaN
// becomes a NaN.
EDGELLM_HOST_DEVICE inline uint16_t to_half(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477fe000u) return static_cast<uint16_t>(sign | 0x7bffu);  // 65504 and above
  if (magnitude < 0x38800000u) {
    // Below the smallest normal half, 2^-14: adding 0.5 puts the units of 2^-24 into the low bits
    // of the sum, rounded to nearest even by the addition itself.
    const float sum = bits_to_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_to_bits(sum) - 0x3f000000u));
  }
  // Round the 13 low mantissa bits away; a carry correctly runs into the exponent.
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

EDGELLM_HOST_DEVICE inline float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // A subnormal half is an integer times 2^-24; both factors are exact floats.
  if (magnitude < 0x400u) {
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    return bits_to_float(sign | float_to_bits(value));
  }
  return bits_to_float(sign | ((magnitude << 13) + 0x38000000u));
}

EDGELLM_HOST_DEVICE inline float from_bfloat16(uint16_t half) {
  return bits_to_float(static_cast<uint32_t>(half) << 16);
}

// One element of an unquantised matrix, widened exactly.
EDGELLM_HOST_DEVICE inline float widen(const void* data, DenseType type, size_t index) {
  switch (type) {
    case DenseType::kF16:
      return from_half(static_cast<const uint16_t*>(data)[index]);
    case DenseType::kBF16:
      return from_bfloat16(static_cast<const uint16_t*>(data)[index]);
    case DenseType::kF32:
      break;
  }
  return static_cast<const float*>(data)[index];
}

// The scale of a row's columns in group `group`, whatever shares a scale.
EDGELLM_HOST_DEVICE inline float scale_of(const TernaryMatrix& w, int row, int group) {
  if (w.n_scales > 0) return w.scale[w.n_scales == 1 ? 0 : row];
  return widen(w.group_scale, w.group_scale_type,
               static_cast<size_t>(row) * static_cast<size_t>(group_count(w.cols)) +
                   static_cast<size_t>(group));
}

// The factor of every attention score.
inline float attention_scale(int head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace edgellm
