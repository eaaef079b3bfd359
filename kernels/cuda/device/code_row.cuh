// Rows of a head and their codes (kernels/integer_attention.h), a warp a row.
#pragma once

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/integer_attention.h"

namespace edgellm::cuda {

// Lane l has dimensions l, l + 32, ...; those beyond the head are 0.
template <int kSlabs>
struct WarpRow {
  float x[kSlabs];

  __device__ __forceinline__ void load(const float* row, int head_dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j < kSlabs; ++j) {
      const int d = lane + 32 * j;
      x[j] = d < head_dim ? row[d] : 0.0f;
    }
  }

  __device__ __forceinline__ void turn(int head_dim) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int block = turn_block(head_dim);
#pragma unroll
    for (int width = 1; width < 32; width *= 2) {
      if (width >= block) return;
#pragma unroll
      for (int j = 0; j < kSlabs; ++j) {
        const float other = __shfl_xor_sync(kAllLanes, x[j], width);
        x[j] = (lane & width) != 0 ? other - x[j] : x[j] + other;
      }
    }
#pragma unroll
    for (int width = 1; width < kSlabs; width *= 2) {
      if (32 * width >= block) return;
#pragma unroll
      for (int j = 0; j < kSlabs; ++j) {
        if ((j & width) != 0 || j + width >= kSlabs) continue;
        const float a = x[j];
        const float b = x[j + width];
        x[j] = a + b;
        x[j + width] = a - b;
      }
    }
  }

  // The bits of the largest magnitude: at least 0x7f800000 where a value is not finite.
  __device__ __forceinline__ uint32_t largest() const {
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kSlabs; ++j) bits = max(bits, __float_as_uint(x[j]) & 0x7fffffffu);
    return max_warp(bits);
  }

  // Dimension lane + 32 j; per_unit 0 for a row that is not finite.
  __device__ __forceinline__ int code(int j, float per_unit) const {
    return per_unit == 0.0f ? 0 : __float2int_rn(x[j] * per_unit);
  }
};

// A query as the product with the keys takes it: digits, and the factor of its scores, NaN where it
// is not finite.
template <int kSlabs>
struct CodedQuery {
  int8_t high[kSlabs];
  int8_t low[kSlabs];
  float factor;

  __device__ __forceinline__ CodedQuery(WarpRow<kSlabs>& row, int head_dim, float scale,
                                        KvType type) {
    row.turn(head_dim);
    const uint32_t largest = row.largest();
    const bool finite = largest < 0x7f800000u;
    const RowUnit unit = row_unit(finite ? __uint_as_float(largest) : 0.0f, kMaxQueryCode);
    factor = score_factor(finite ? unit.unit : __uint_as_float(0x7fffffffu), scale, type);
#pragma unroll
    for (int j = 0; j < kSlabs; ++j) {
      const Digits digits = digits_of(row.code(j, finite ? unit.per_unit : 0.0f));
      high[j] = static_cast<int8_t>(digits.high);
      low[j] = static_cast<int8_t>(digits.low);
    }
  }
};

// A key or a value: codes, and what the cache keeps beside them.
template <int kSlabs>
struct CodedRow {
  int code[kSlabs];
  float units[2];  // of a key: key_unit; of a value: value_log2_unit, value_per_unit
  bool finite;

  __device__ __forceinline__ CodedRow(WarpRow<kSlabs>& row, bool is_value, int head_dim,
                                      KvType type) {
    row.turn(head_dim);
    const uint32_t largest = row.largest();
    finite = largest < 0x7f800000u;
    const float amax = finite ? __uint_as_float(largest) : 0.0f;
    float per_unit;
    if (is_value) {
      const ValueUnit unit = value_unit(amax, max_code(type));
      units[0] = unit.log2_unit;
      units[1] = unit.per_unit;
      per_unit = unit.per_unit;
    } else {
      const RowUnit unit = row_unit(amax, max_code(type));
      units[0] = unit.unit;
      units[1] = 0.0f;
      per_unit = unit.per_unit;
    }
#pragma unroll
    for (int j = 0; j < kSlabs; ++j) code[j] = row.code(j, finite ? per_unit : 0.0f);
  }
};

// The byte of a code's digit as the cache keeps it.
template <int kDigits>
__device__ __forceinline__ uint8_t digit_byte(int code, int digit) {
  if constexpr (kDigits == 1) return static_cast<uint8_t>(code);
  return static_cast<uint8_t>(digit == 0 ? (code + 128) >> 8 : code);
}

}  // namespace edgellm::cuda
