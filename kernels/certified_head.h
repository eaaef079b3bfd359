// The arithmetic of the certified head (CertifiedHeadArgs, ops.h): what a row of the head and a
// hidden state must remember so that the product of their codes bounds the logit. One source for
// host and device; docs/numerics.md derives the bound.
//
// These numbers need not be the same bits in every backend, as they decide only which logits are
// computed: each step rounds to nearest and a slack that is larger than all of its errors together
// makes the result an upper bound. u = 2^-24 below.
#pragma once

#include <cfloat>

#include "kernels/canonical.h"

namespace edgellm {

// The smallest float that is not below a value >= 0.
EDGELLM_HOST_DEVICE inline float round_up(double value) {
  const float nearest = static_cast<float>(value);
  return static_cast<double>(nearest) < value ? bits_to_float(float_to_bits(nearest) + 1) : nearest;
}

// ---- Rows of the head -----------------------------------------------------------------------

// Codes per unit of a row whose largest magnitude is `amax`: finite for every float.
EDGELLM_HOST_DEVICE inline double codes_per_unit(float amax) {
  return amax == 0.0f ? 0.0 : 127.0 / static_cast<double>(amax);
}

// The code of a value, and its squares, which are exact to 2^-50 in double: squares of floats
// neither underflow nor overflow there.
struct CodedValue {
  int8_t code;
  double error_square;  // (value - scale * code)^2
  double coded_square;  // (scale * code)^2
};
EDGELLM_HOST_DEVICE inline CodedValue code_value(float value, double per_unit, float scale) {
  const double rounded = rint(static_cast<double>(value) * per_unit);
  const double clamped = rounded < -127.0 ? -127.0 : rounded > 127.0 ? 127.0 : rounded;
  const double coded = static_cast<double>(scale) * clamped;
  const double error = static_cast<double>(value) - coded;
  return {static_cast<int8_t>(clamped), error * error, coded * coded};
}

// From the norms of a row, computed to 2^-31 at least: from sums of at most 2^14 squares in double.
EDGELLM_HOST_DEVICE inline CertifiedRow certified_row(float scale, double error, double coded,
                                                      double norm) {
  constexpr double kSlack = 1.0 + 0x1p-30;
  return {scale, round_up(error * kSlack), round_up(coded * kSlack), round_up(norm * kSlack)};
}

// A row with a weight that is not finite: no bound holds, so that it is always rescored.
EDGELLM_HOST_DEVICE inline CertifiedRow unbounded_row() {
  const float infinity = bits_to_float(0x7f800000u);
  return {0.0f, infinity, infinity, infinity};
}

// ---- Hidden states --------------------------------------------------------------------------

// 1 / t as two factors: t is the power of two with max|h| / t in [2^14, 2^15), or a smaller number
// where h is subnormal. Scaling by it loses only what falls below 2^-149.
struct StepScale {
  float first;
  float second;

  EDGELLM_HOST_DEVICE float scaled(float value) const { return value * first * second; }
};
EDGELLM_HOST_DEVICE inline StepScale step_scale(float amax) {
  const int32_t biased = static_cast<int32_t>(float_to_bits(amax) >> 23);
  const int32_t exponent = 141 - (biased > 1 ? biased : 1);  // -113 .. 140
  const int32_t half = exponent / 2;
  return {bits_to_float(static_cast<uint32_t>(half + 127) << 23),
          bits_to_float(static_cast<uint32_t>(exponent - half + 127) << 23)};
}

// scaled / t as an int16 step, at most `most` >= 32639 in magnitude. scaled - step is exact: at
// most 1/2 below most + 1/2, and at most 129 beyond.
EDGELLM_HOST_DEVICE inline float step_of(float scaled, float most = 32767.0f) {
  const float rounded = rintf(scaled);
  return rounded > most ? most : rounded < -most ? -most : rounded;
}

// A hidden state h = t * step + delta in units of t, each number rounded up.
struct HiddenBound {
  float norm;          // ||h|| / t
  float delta;         // ||delta|| / t
  float rounding;      // of canonical_sum: k u / (1 - k u) * ||h|| / t, k = ceil(n / 256) + 9
  float floor;         // subnormal roundings: n * 2^-149 / t, and those of the bound itself
  float max_row_norm;  // rows beyond it might have a logit that overflows
};

// A root's upper bound from a sum of n squares added up in float, in any order: n u at most.
// Squares below 2^-149 are lost: 2^-67 of the root at most.
EDGELLM_HOST_DEVICE inline float norm_bound(float squares, int n) {
  return sqrtf(squares) * (1.0f + static_cast<float>(n + 64) * 0x1p-24f) + 0x1p-60f;
}

// From sums of squares of the n scaled values and of what the steps leave, added up in float.
EDGELLM_HOST_DEVICE inline HiddenBound hidden_bound(bool finite, StepScale scale, int n,
                                                    float squares, float delta_squares) {
  const float infinity = bits_to_float(0x7f800000u);
  if (!finite) return {infinity, infinity, infinity, infinity, 0.0f};
  const float k = static_cast<float>((n + kPartials - 1) / kPartials + 9);
  HiddenBound bound;
  bound.norm = norm_bound(squares, n);
  bound.delta = norm_bound(delta_squares, n);
  bound.rounding = bound.norm * (k * (1.01f * 0x1p-24f));
  bound.floor = scale.scaled(static_cast<float>(n) * 0x1p-149f) + 0x1p-100f;
  bound.max_row_norm = (0.25f * FLT_MAX) / (bound.norm / scale.first / scale.second);
  return bound;
}

// ---- The bound ------------------------------------------------------------------------------

// Lower and upper bound of a logit in units of t; NaN or infinite where there is none.
struct LogitBounds {
  float lower;
  float upper;
};

// `product` is the exact sum of code * step, rounded to nearest once.
EDGELLM_HOST_DEVICE inline LogitBounds logit_bounds(float product, const CertifiedRow& row,
                                                    const HiddenBound& h) {
  // 16 u where the sums below, the two roundings of `middle` and those of the result need 8 u.
  constexpr float kSlack = 0x1p-20f;
  const float middle = row.scale * product;
  const float spread = row.error * h.norm + row.coded * h.delta + row.norm * h.rounding;
  float radius = spread * (1.0f + kSlack) + (fabsf(middle) * kSlack + h.floor);
  if (!(row.norm <= h.max_row_norm)) radius = bits_to_float(0x7f800000u);
  return {middle - radius, middle + radius};
}

// Larger key: larger logit, then lower id. -0 counts as +0.
EDGELLM_HOST_DEVICE inline uint64_t logit_key(float logit, int id) {
  return static_cast<uint64_t>(ordered_bits(logit + 0.0f)) << 32 |
         (0xffffffffu - static_cast<uint32_t>(id));
}
// The id of the largest key; -1 where there was none.
EDGELLM_HOST_DEVICE inline int32_t id_of_key(uint64_t key) {
  return key == 0 ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

}  // namespace edgellm
