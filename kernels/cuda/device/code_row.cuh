// Rows of a head and their codes (kernels/integer_attention.h): a warp a row, or some of its lanes.
#pragma once

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/integer_attention.h"

namespace edgellm::cuda {

// Lane l has dimensions l, l + 32, ...; those beyond the head are 0.
template <int kSlabs>
struct WarpRow {
  static constexpr int kValues = kSlabs;
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
    const int block = turn_block(head_dim);
    if (block >= 32) {
#pragma unroll
      for (int width = 1; width < 32; width *= 2) turn_lanes(width);
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
    } else {
#pragma unroll 1
      for (int width = 1; width < block; width *= 2) turn_lanes(width);
    }
  }
  // Dimensions that are `width` lanes apart: their sum in one lane, their difference in the other.
  __device__ __forceinline__ void turn_lanes(int width) {
    const float sign = (static_cast<int>(threadIdx.x) & width) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int j = 0; j < kSlabs; ++j) {
      x[j] = fmaf(sign, x[j], __shfl_xor_sync(kAllLanes, x[j], width));
    }
  }

  // The bits of the largest magnitude: at least 0x7f800000 where a value is not finite.
  __device__ __forceinline__ uint32_t largest() const {
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kSlabs; ++j) bits = max(bits, __float_as_uint(x[j]) & 0x7fffffffu);
    return max_warp(bits);
  }
};

// A row of 32 kSlabs dimensions by 4 kSlabs neighbouring lanes, so that a warp has several rows at
// once: lane l has dimensions 8 l .. 8 l + 7.
template <int kSlabs>
struct LanesRow {
  static constexpr int kValues = 8;
  static constexpr int kLanes = 4 * kSlabs;
  float x[kValues];

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }

  // The row starts at a multiple of 16 bytes.
  __device__ __forceinline__ void load(const float* row) {
    const auto* from = reinterpret_cast<const float4*>(row) + 2 * lane();
    const float4 a = from[0];
    const float4 b = from[1];
    const float values[kValues] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < kValues; ++i) x[i] = values[i];
  }

  __device__ __forceinline__ void turn(int) {
#pragma unroll
    for (int width = 1; width < kValues; width *= 2) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        if ((i & width) != 0) continue;
        const float a = x[i];
        const float b = x[i + width];
        x[i] = a + b;
        x[i + width] = a - b;
      }
    }
#pragma unroll
    for (int width = 1; width < kLanes; width *= 2) {
      const float sign = (lane() & width) != 0 ? -1.0f : 1.0f;
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        x[i] = fmaf(sign, x[i], __shfl_xor_sync(kAllLanes, x[i], width));
      }
    }
  }

  // As of WarpRow.
  __device__ __forceinline__ uint32_t largest() const {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) bits = max(bits, __float_as_uint(x[i]) & 0x7fffffffu);
#pragma unroll
    for (int width = 1; width < kLanes; width *= 2) {
      bits = max(bits, __shfl_xor_sync(kAllLanes, bits, width));
    }
    return bits;
  }
};

enum class RowKind : uint8_t { kQuery, kKey, kValue };

// A row's codes. All kinds of rows share one piece of code, so that a kernel that has several is
// short. Row: WarpRow or LanesRow.
template <class Row>
struct CodedRow {
  int code[Row::kValues];  // of the dimensions that the lane has
  CodeUnit unit;
  bool finite;

  __device__ __forceinline__ CodedRow(Row& row, RowKind kind, int head_dim, KvType type) {
    row.turn(head_dim);
    const uint32_t largest = row.largest();
    finite = largest < 0x7f800000u;
    unit = code_unit(finite ? __uint_as_float(largest) : 0.0f,
                     kind == RowKind::kQuery ? kMaxQueryCode : max_code(type),
                     kind == RowKind::kValue);
#pragma unroll
    for (int j = 0; j < Row::kValues; ++j) {
      code[j] = finite ? __float2int_rn(row.x[j] * unit.per_unit) : 0;
    }
  }

  // The factor of a query's scores, NaN where it is not finite.
  __device__ __forceinline__ float factor(float scale, KvType type) const {
    return score_factor(finite ? unit.unit : __uint_as_float(0x7fffffffu), scale, type);
  }
};

// The byte of a code's digit as the cache keeps it.
template <int kDigits>
__device__ __forceinline__ uint8_t digit_byte(int code, int digit) {
  if constexpr (kDigits == 1) return static_cast<uint8_t>(code);
  return static_cast<uint8_t>(digit == 0 ? (code + 128) >> 8 : code);
}

// The same of eight codes, in their order.
template <int kDigits>
__device__ __forceinline__ uint2 digit_bytes(const int (&code)[8], int digit) {
  const bool is_upper = kDigits == 2 && digit == 0;
  const int rounded = is_upper ? 128 : 0;
  const unsigned of_pair = is_upper ? 0x0051 : 0x0040;
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pair[i] = __byte_perm(static_cast<uint32_t>(code[2 * i] + rounded),
                          static_cast<uint32_t>(code[2 * i + 1] + rounded), of_pair);
  }
  return make_uint2(__byte_perm(pair[0], pair[1], 0x5410), __byte_perm(pair[2], pair[3], 0x5410));
}

}  // namespace edgellm::cuda
