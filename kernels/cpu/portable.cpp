// Plain C++ for any machine: the float kernels of simd.inc with vectors of one lane.
#include <cstring>

#include "kernels/canonical.h"
#include "kernels/cpu/fetch_ahead.h"
#include "kernels/cpu/head_codes.h"
#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {
namespace {

using F = float;
constexpr int kLanes = 1;
constexpr int kAccumulators = kPartials;

inline F zero() { return 0.0f; }
inline F broadcast(float v) { return v; }
inline F load(const float* p) { return *p; }
inline F load_first(const float* p, int) { return *p; }
inline void store(float* p, F v) { *p = v; }
inline void store_first(float* p, int, F v) { *p = v; }
inline F add(F a, F b) { return a + b; }
inline F sub(F a, F b) { return a - b; }
inline F mul(F a, F b) { return a * b; }
inline F div(F a, F b) { return a / b; }
inline F fmadd(F a, F b, F c) { return std::fma(a, b, c); }
inline F vmax(F a, F b) { return a > b ? a : b; }
inline F vabs(F v) { return std::fabs(v); }
inline F negate(F v) { return -v; }
inline F relu(F v) { return v > 0.0f ? v : 0.0f; }
inline F exp(F x) { return canonical_exp(x); }
inline bool all_finite(F v) { return std::isfinite(v); }
inline float first_lane(F v) { return v; }
inline float fold_lanes(F v) { return v; }
inline float max_lane(F v) { return v; }
inline float sqrt_scalar(float x) { return std::sqrt(x); }
inline F widen_half(const uint16_t* p) { return from_half(*p); }
inline F widen_half_first(const uint16_t* p, int) { return from_half(*p); }
inline F widen_bfloat16(const uint16_t* p) { return from_bfloat16(*p); }
inline F widen_bfloat16_first(const uint16_t* p, int) { return from_bfloat16(*p); }
inline void store_int8(int8_t* p, F v) { *p = static_cast<int8_t>(v); }
inline void store_first_int8(int8_t* p, int, F v) { store_int8(p, v); }

// One byte a plane: columns stay in their order.
constexpr int kPlaneBytes = 1;

int32_t store_codes(const float* x, const float* gain, float s, int n, int8_t* codes) {
  // |z * s| is below 2^22, so adding and subtracting 1.5 * 2^23 rounds to the nearest even integer
  // as rint() does, without a call.
  constexpr float kRound = 12582912.0f;
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) {
    const float z = gain ? x[i] * gain[i] : x[i];
    const float rounded = (z * s + kRound) - kRound;
    const float code = rounded < -128.0f ? -128.0f : rounded > 127.0f ? 127.0f : rounded;
    codes[i] = static_cast<int8_t>(code);
    sum += codes[i];
  }
  for (int i = n; i % 4 != 0; ++i) codes[i] = 0;
  return sum;
}

// The four weights of every byte of codes, as int8 in memory order.
struct UnpackTable {
  int8_t weights[256][4];
  constexpr UnpackTable() : weights() {
    for (int byte = 0; byte < 256; ++byte) {
      for (int k = 0; k < 4; ++k) {
        const int code = byte >> (2 * k) & 3;
        weights[byte][k] = static_cast<int8_t>(code == 3 ? -1 : code);
      }
    }
  }
};
constexpr UnpackTable kUnpack;

void ternary_rows(const TernaryMatrix& w, int i_begin, int i_end, const QuantisedRows& x,
                  int t_begin, int t_end, float* out, size_t out_stride) {
  // A piece of a row is unpacked once for all activation rows: small enough for the L1 cache.
  constexpr size_t kPieceBytes = 1024;
  const size_t row_bytes = (static_cast<size_t>(w.cols) + 3) / 4;
  int8_t weights[4 * kPieceBytes];
  int32_t sums[kMaxTokenTile];
  for (int i = i_begin; i < i_end; ++i) {
    const uint8_t* codes = w.codes + static_cast<size_t>(i) * row_bytes;
    std::memset(sums, 0, sizeof sums);
    for (size_t begin = 0; begin < row_bytes; begin += kPieceBytes) {
      const size_t bytes = row_bytes - begin < kPieceBytes ? row_bytes - begin : kPieceBytes;
      for (size_t b = 0; b < bytes; ++b) {
        std::memcpy(weights + 4 * b, kUnpack.weights[codes[begin + b]], 4);
      }
      for (int t = t_begin; t < t_end; ++t) {
        const int8_t* a = x.codes + static_cast<size_t>(t) * x.stride + 4 * begin;
        int32_t sum = 0;
        for (size_t c = 0; c < 4 * bytes; ++c) {
          sum +=
              static_cast<int16_t>(static_cast<int16_t>(weights[c]) * static_cast<int16_t>(a[c]));
        }
        sums[t - t_begin] += sum;
      }
    }
    const float scale = w.scale[w.n_scales == 1 ? 0 : i];
    for (int t = t_begin; t < t_end; ++t) {
      out[static_cast<size_t>(t - t_begin) * out_stride + static_cast<size_t>(i - i_begin)] =
          static_cast<float>(sums[t - t_begin]) * ((scale / x.s[t]) * x.r[t]);
    }
  }
}

void certified_products(const CertifiedHead& certified, int i_begin, int i_end,
                        const HeadSteps& steps, int t_count, float* out, size_t out_stride) {
  const size_t columns = certified.pitch();
  const size_t row_bytes = head_row_bytes(certified.cols);
  for (int i = i_begin; i < i_end; ++i) {
    const uint8_t* codes =
        static_cast<const uint8_t*>(certified.codes) + static_cast<size_t>(i) * row_bytes;
    for (int t = 0; t < t_count; ++t) {
      const int8_t* digits = steps.digits + 2 * static_cast<size_t>(t) * columns;
      int32_t high = 0;
      int32_t low = 0;
      const uint8_t* block = codes;
      for (size_t b = 0; b < columns; b += kHeadBlockColumns, block += kHeadBlockBytes) {
        for (int c = 0; c < kHeadBlockColumns; ++c) {
          const int code = head_code(block, c);
          const size_t column = b + static_cast<size_t>(c);
          high += code * digits[column];
          low += code * digits[columns + column];
        }
      }
      out[static_cast<size_t>(t) * out_stride + static_cast<size_t>(i - i_begin)] =
          static_cast<float>(int64_t{256} * high + low);
    }
  }
}

#include "kernels/cpu/simd.inc"

inline F fmsub(F a, F b, F c) { return std::fma(a, b, -c); }
inline F turn_lanes(F v, int) { return v; }
inline void store_digits(F v, int8_t* high, int8_t* low) {
  // Adding 1.5 * 2^23 rounds to an integer, as rint() does, and leaves it in the low bits.
  const int code = static_cast<int16_t>(float_to_bits(v + 12582912.0f));
  *high = static_cast<int8_t>((code + 128) >> 8);
  *low = static_cast<int8_t>(code);
}
inline F to_floats(const int32_t* p) { return static_cast<float>(*p); }
inline void store_bits(int32_t* p, F v) { *p = static_cast<int32_t>(float_to_bits(v)); }
inline F add_exponent(F p, F t) {
  return bits_to_float(float_to_bits(p) + (float_to_bits(t) << 23));
}

// Short loops that a compiler turns into the vectors of any machine.
constexpr int kWordLanes = 16;
struct W {
  int32_t lane[kWordLanes];
};
struct Pairs {
  int16_t first[kWordLanes];
  int16_t second[kWordLanes];
};
template <class Operation>
inline W by_lanes(Operation operation) {
  W result;
  for (int i = 0; i < kWordLanes; ++i) result.lane[i] = operation(i);
  return result;
}
template <class First, class Second>
inline Pairs by_pairs(First first, Second second) {
  Pairs result;
  for (int i = 0; i < kWordLanes; ++i) result.first[i] = static_cast<int16_t>(first(i));
  for (int i = 0; i < kWordLanes; ++i) result.second[i] = static_cast<int16_t>(second(i));
  return result;
}
inline W load_words(const void* p) {
  W result;
  std::memcpy(result.lane, p, sizeof result.lane);
  return result;
}
inline void store_words(int32_t* p, const W& v) { std::memcpy(p, v.lane, sizeof v.lane); }
inline W broadcast_word(int32_t word) {
  return by_lanes([&](int) { return word; });
}
inline Pairs broadcast_pair(int32_t pair) {
  return by_pairs([&](int) { return pair; }, [&](int) { return pair >> 16; });
}
inline W multiply_pairs(const W& acc, const Pairs& a, const Pairs& b) {
  return by_lanes([&](int i) {
    const int32_t products = a.first[i] * b.first[i] + a.second[i] * b.second[i];
    // Sums of scores may wrap on the way.
    return static_cast<int32_t>(static_cast<uint32_t>(acc.lane[i]) +
                                static_cast<uint32_t>(products));
  });
}
inline Pairs even_bytes(const W& v) {
  return by_pairs([&](int i) { return v.lane[i] & 255; },
                  [&](int i) { return v.lane[i] >> 16 & 255; });
}
inline Pairs odd_bytes(const W& v) {
  return by_pairs([&](int i) { return v.lane[i] >> 8 & 255; },
                  [&](int i) { return v.lane[i] >> 24 & 255; });
}
inline Pairs even_digits(const W& v) {
  return by_pairs([&](int i) { return v.lane[i] << 24 >> 24; },
                  [&](int i) { return v.lane[i] << 8 >> 24; });
}
inline Pairs odd_digits(const W& v) {
  return by_pairs([&](int i) { return v.lane[i] << 16 >> 24; },
                  [&](int i) { return v.lane[i] >> 24; });
}
inline Pairs add_pairs(const Pairs& a, const Pairs& b) {
  return by_pairs([&](int i) { return a.first[i] + b.first[i]; },
                  [&](int i) { return a.second[i] + b.second[i]; });
}
inline void pair_positions(const int32_t* bits, int32_t* codes, int32_t* high) {
  for (int g = 0; g < 8; g += 4) {
    for (int odd = 0; odd < 2; ++odd) {
      const int32_t first = bits[g + odd];
      const int32_t second = bits[g + odd + 2];
      codes[g + odd] = static_cast<int32_t>(
          ((first & 0xffff) | static_cast<uint32_t>(second) << 16) ^ 0x80008000u);
      high[g + odd] = (first >> 8 & 255) | (second >> 8 & 255) << 16;
    }
  }
}

#include "kernels/cpu/integer_pairs.inc"

// The rest is written over those products.
#include "kernels/cpu/integer.inc"

// ---- Groups ---------------------------------------------------------------------------------

bool code_groups(const float* x, const float* gain, float eps, int n, const GroupedRows& out,
                 int row) {
  auto* codes = reinterpret_cast<int16_t*>(out.digits) + static_cast<size_t>(row) * out.stride;
  float* units = out.unit + static_cast<size_t>(row) * static_cast<size_t>(out.groups);
  bool finite = true;
  for (int begin = 0; begin < n; begin += kScaleGroup) {
    const int end = n - begin < kScaleGroup ? n : begin + kScaleGroup;
    const auto z = [&](int i) { return gain ? x[i] * gain[i] : x[i]; };
    float amax = 0.0f;
    for (int i = begin; i < end; ++i) {
      finite = finite && std::isfinite(z(i));
      amax = vmax(amax, std::fabs(z(i)));
    }
    const float largest = amax < 1e-30f ? 1e-30f : amax;
    const bool is_zero = !finite || amax == 0.0f;
    const float per_unit = is_zero ? 0.0f : kMaxGroupCode / largest;
    units[begin / kScaleGroup] = is_zero ? 0.0f : largest / kMaxGroupCode;
    for (int i = begin; i < end; ++i) {
      codes[i] = is_zero ? int16_t{0} : static_cast<int16_t>(std::rint(z(i) * per_unit));
    }
  }
  out.r[row] = gain ? rms_factor(x, n, eps) : 1.0f;
  if (!finite) std::memset(codes, 0, sizeof(int16_t) * static_cast<size_t>(n));
  return finite;
}

void group_rows(const TernaryMatrix& w, int i_begin, int i_end, const GroupedRows& x, int t_begin,
                int t_end, float* out, size_t out_stride) {
  const size_t row_bytes = (static_cast<size_t>(w.cols) + 3) / 4;
  const int groups = group_count(w.cols);
  float sums[kMaxTokenTile];
  for (int i = i_begin; i < i_end; ++i) {
    const uint8_t* row = w.codes + static_cast<size_t>(i) * row_bytes;
    std::memset(sums, 0, sizeof sums);
    for (int g = 0; g < groups; ++g) {
      const int begin = g * kScaleGroup;
      const int end = w.cols - begin < kScaleGroup ? w.cols : begin + kScaleGroup;
      int8_t weights[kScaleGroup];  // a group is unpacked once for all activation rows
      for (int b = begin / 4; 4 * b < end; ++b) {
        std::memcpy(weights + (4 * b - begin), kUnpack.weights[row[b]], 4);
      }
      const float scale = scale_of(w, i, g);
      for (int t = t_begin; t < t_end; ++t) {
        const auto* codes =
            reinterpret_cast<const int16_t*>(x.digits) + static_cast<size_t>(t) * x.stride + begin;
        int32_t dot = 0;
        for (int c = 0; c < end - begin; ++c) dot += weights[c] * codes[c];
        const float unit =
            x.unit[static_cast<size_t>(t) * static_cast<size_t>(x.groups) + static_cast<size_t>(g)];
        float& sum = sums[t - t_begin];
        sum = std::fma(static_cast<float>(dot) * unit, scale, sum);
      }
    }
    for (int t = t_begin; t < t_end; ++t) {
      out[static_cast<size_t>(t - t_begin) * out_stride + static_cast<size_t>(i - i_begin)] =
          sums[t - t_begin] * x.r[t];
    }
  }
}

}  // namespace

const Primitives kPortable = {
    "portable", kPlaneBytes, quantise, ternary_rows, code_groups, group_rows,         rms_norm,
    dense_rows, largest,     powers,   row_amax,     code_row,    certified_products, gate,
    add_rows,   attention,   turn_row, code_digits,  code_query,  integer_attention,  merge_states};

}  // namespace edgellm::cpu
