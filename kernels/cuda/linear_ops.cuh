// The four ternary products as the kernels see them: which weight rows belong together, and where
// their results go. gemv.cu, gemm_skinny.cu, gemm.cu and gemm_wgmma.cu make the products
// (plan/linear.h chooses).
//
// One thread stores the results of a pair of output rows: a RoPE pair of a head, gate and up of one
// feed-forward unit, or any two rows of a projection. An op numbers its pairs from 0:
//   pairs()                  the number of pairs
//   rows(pair)               the two weight rows and their multipliers
//   place(pair, which)       the same weight row by its matrix and its number there
//   locate(token, pair)      the target of the results; may run before the previous kernel ends
//   prefetch(target)         after that: reads what the results are combined with
//   store(target, a, b)      stores the results of the two rows, scaled
//   share_scales(a, b)       whether the multipliers of pairs a .. b are known to be the same
//   redirect(target, memory) the same target in `memory` [kRedirectFloats], for a warm-up
// A thread that has many tokens of one pair stores them by a column instead:
//   with_column(pair, run)   calls run(column) with the type of column that the pair has
//   position(token)          what a column wants to know of a token
//   column.load(token, position)        reads what the results of a token are combined with
//   column.store(token, loaded, a, b)   stores them; false where one is not finite and should be
//   note(finite)             of all that stores have said
#pragma once

#include <type_traits>

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/plan/linear.h"

namespace edgellm::cuda {

constexpr int kRedirectFloats = 2;

// base[count * stride] where `bytes` are those of the stride: one instruction.
template <class T>
__device__ __forceinline__ T* advance(T* base, int count, uint32_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) +
                              static_cast<uint64_t>(static_cast<uint32_t>(count)) * bytes);
}
__device__ __forceinline__ uint32_t row_bytes(int width) {
  return static_cast<uint32_t>(width) * static_cast<uint32_t>(sizeof(float));
}

// A TernaryMatrix, shorter: kernels start with cold caches, their arguments included.
struct WeightMatrix {
  const uint32_t* words;  // [rows, words_per_row]
  const float* scale;     // [1] or [rows]
  int rows;
  bool scale_per_row;

  WeightMatrix(const TernaryMatrix& w)
      : words(reinterpret_cast<const uint32_t*>(w.codes)),
        scale(w.scale),
        rows(w.rows),
        scale_per_row(w.n_scales != 1) {}
};

struct PairRows {
  const uint32_t* words[2];  // the second is null where a projection has an odd number of rows
  float scale[2];

  __device__ void set(int which, const WeightMatrix& w, int row, int row_words) {
    words[which] = w.words + static_cast<size_t>(row) * static_cast<size_t>(row_words);
    scale[which] = w.scale[w.scale_per_row ? row : 0];
  }
};

// A row of the op's matrices, in the order of its members.
struct RowPlace {
  int matrix;  // -1: a projection has an odd number of rows, and this is the one that lacks
  int row;
};

// x += W y
struct ProjectOp {
  WeightMatrix w;
  int row_words;
  float* x;  // [tokens, w.rows]
  int32_t* fault;
  int layer;

  struct Target {
    float* at[2];
    float residual[2];
    bool redirected;
  };

  __host__ __device__ int pairs() const { return (w.rows + 1) / 2; }
  __device__ bool share_scales(int, int) const { return !w.scale_per_row; }
  __device__ PairRows rows(int pair) const {
    PairRows result{};
    result.set(0, w, pair, row_words);
    if (pair + pairs() < w.rows) result.set(1, w, pair + pairs(), row_words);
    return result;
  }
  __device__ RowPlace place(int pair, int which) const {
    const int row = pair + which * pairs();
    return {row < w.rows ? 0 : -1, row};
  }
  __device__ Target locate(int token, int pair) const {
    Target target{};
    float* row = x + static_cast<size_t>(token) * static_cast<size_t>(w.rows);
    target.at[0] = row + pair;
    target.at[1] = pair + pairs() < w.rows ? row + pair + pairs() : nullptr;
    return target;
  }
  __device__ void prefetch(Target& target) const {
    target.residual[0] = *target.at[0];
    if (target.at[1] != nullptr) target.residual[1] = *target.at[1];
  }
  __device__ Target redirect(Target target, float* memory) const {
    target.at[0] = memory;
    if (target.at[1] != nullptr) target.at[1] = memory + 1;
    target.redirected = true;
    return target;
  }
  struct Column {
    float* at[2];          // of token 0; both the first where there is no second
    uint32_t token_bytes;  // from a token to the next
    bool has_second;

    struct Loaded {
      float residual[2];
    };
    __device__ Loaded load(int token, int) const {
      return {{*advance(at[0], token, token_bytes), *advance(at[1], token, token_bytes)}};
    }
    __device__ bool store(int token, const Loaded& loaded, float a, float b) const {
      const float first = loaded.residual[0] + a;
      const float second = loaded.residual[1] + b;
      *advance(at[0], token, token_bytes) = first;
      if (has_second) *advance(at[1], token, token_bytes) = second;
      return isfinite(first) && (!has_second || isfinite(second));
    }
  };
  template <class Run>
  __device__ void with_column(int pair, const Run& run) const {
    const bool has_second = pair + pairs() < w.rows;
    run(Column{{x + pair, x + pair + (has_second ? pairs() : 0)}, row_bytes(w.rows), has_second});
  }
  __device__ int position(int) const { return 0; }
  __device__ void note(bool finite) const {
    if (!finite) set_fault(fault, layer + 1);
  }
  __device__ void store(const Target& target, float a, float b) const {
    const float first = target.residual[0] + a;
    *target.at[0] = first;
    bool finite = isfinite(first);
    if (target.at[1] != nullptr) {
      const float second = target.residual[1] + b;
      *target.at[1] = second;
      finite = finite && isfinite(second);
    }
    if (!finite && !target.redirected) set_fault(fault, layer + 1);
  }
};

__device__ __forceinline__ float gated_by_relu2(float gate, float up) {
  const float t = gate > 0.0f ? gate : 0.0f;
  return (t * t) * up;
}
// gate / (1 + canonical_exp(-gate)), the same bits by two thirds of the instructions and without a
// branch; NaN where the gate is infinite, which is a fault as infinity is.
//
// Where the exponential is below 2^-24, 1 is the sum anyway. From there on no exponential is
// subnormal, so n can be added to the exponent of e at once (the bits of 1.5 * 2^23 are shifted
// out). Numerator and denominator are taken at a quarter, so that the reciprocal of the largest is
// no subnormal number. The division is then the compiler's own for such numbers.
__device__ __forceinline__ float silu(float gate) {
  const ExpParts parts = exp_parts(fmaxf(-gate, -87.0f));
  const float power = bits_to_float(float_to_bits(parts.e) + (float_to_bits(parts.shifted) << 23));
  const float denominator = fmaf(power, 0.25f, 0.25f);
  const float numerator = gate * 0.25f;
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(denominator));
  reciprocal = fmaf(reciprocal, fmaf(-denominator, reciprocal, 1.0f), reciprocal);
  float quotient = numerator * reciprocal;
  quotient = fmaf(fmaf(-denominator, quotient, numerator), reciprocal, quotient);
  quotient = fmaf(fmaf(-denominator, quotient, numerator), reciprocal, quotient);
  // The denominator is 2, and residuals would be subnormal.
  quotient = fabsf(gate) < 0x1p-60f ? gate * 0.5f : quotient;
  return gate < -88.72f ? gate * 0.0f : quotient;  // the exponential is infinite
}
__device__ __forceinline__ float gated_by_silu(float gate, float up) { return silu(gate) * up; }
__device__ __forceinline__ float gated(GateActivation act, float gate, float up) {
  return act == GateActivation::kRelu2 ? gated_by_relu2(gate, up) : gated_by_silu(gate, up);
}

// u = act(gate) * up
struct FfnUpOp {
  WeightMatrix gate, up;
  int row_words;
  GateActivation act;
  float* u;  // [tokens, gate.rows]

  struct Target {
    float* at;
  };

  __host__ __device__ int pairs() const { return gate.rows; }
  __device__ bool share_scales(int, int) const { return !gate.scale_per_row && !up.scale_per_row; }
  __device__ PairRows rows(int pair) const {
    PairRows result{};
    result.set(0, gate, pair, row_words);
    result.set(1, up, pair, row_words);
    return result;
  }
  __device__ RowPlace place(int pair, int which) const { return {which, pair}; }
  __device__ Target locate(int token, int pair) const {
    return {u + static_cast<size_t>(token) * static_cast<size_t>(gate.rows) + pair};
  }
  __device__ void prefetch(Target&) const {}
  __device__ Target redirect(Target, float* memory) const { return {memory}; }
  __device__ void store(const Target& target, float g, float v) const {
    *target.at = gated(act, g, v);
  }

  template <GateActivation kAct>
  struct Column {
    float* at;             // of token 0
    uint32_t token_bytes;  // from a token to the next

    struct Loaded {};
    __device__ Loaded load(int, int) const { return {}; }
    __device__ bool store(int token, const Loaded&, float g, float v) const {
      *advance(at, token, token_bytes) = gated(kAct, g, v);
      return true;
    }
  };
  template <class Run>
  __device__ void with_column(int pair, const Run& run) const {
    const uint32_t token_bytes = row_bytes(gate.rows);
    if (act == GateActivation::kRelu2) {
      run(Column<GateActivation::kRelu2>{u + pair, token_bytes});
    } else {
      run(Column<GateActivation::kSilu>{u + pair, token_bytes});
    }
  }
  __device__ int position(int) const { return 0; }
  __device__ void note(bool) const {}
};

// q, k and v with RoPE, or without where there are no angles. Pairs of q come first, then those of
// k, then v.
struct QkvOp {
  WeightMatrix q, k, v;
  int row_words;
  const float* rope_cos;  // [positions, head_dim / 2] or null
  const float* rope_sin;
  const int32_t* positions;  // [tokens], null where there are no angles
  float* q_out;              // [tokens, q.rows]
  float* k_out;              // [tokens, k.rows]
  float* v_out;              // [tokens, v.rows]
  int head_dim;

  struct Target {
    bool rotates;
    float* at[2];
    float cosine;
    float sine;
  };

  __host__ __device__ int pairs() const { return (q.rows + k.rows + v.rows) / 2; }
  __device__ bool share_scales(int first, int last) const {
    return matrix_of(first) == matrix_of(last) && !q.scale_per_row && !k.scale_per_row &&
           !v.scale_per_row;
  }
  __device__ PairRows rows(int pair) const {
    PairRows result{};
    // Selected field by field: a reference would put the arguments into local memory.
    const int which = matrix_of(pair);
    const int half = head_dim / 2;
    const int row = pair / half * head_dim + pair % half;
    const uint32_t* words = which == 0 ? q.words : which == 1 ? k.words : v.words;
    const float* scale = which == 0 ? q.scale : which == 1 ? k.scale : v.scale;
    const bool per_row = which == 0   ? q.scale_per_row
                         : which == 1 ? k.scale_per_row
                                      : v.scale_per_row;
    for (int i = 0; i < 2; ++i) {
      const int r = row + i * half;
      result.words[i] = words + static_cast<size_t>(r) * static_cast<size_t>(row_words);
      result.scale[i] = scale[per_row ? r : 0];
    }
    return result;
  }
  __device__ RowPlace place(int pair, int which) const {
    const int matrix = matrix_of(pair);
    const int half = head_dim / 2;
    return {matrix, pair / half * head_dim + pair % half + which * half};
  }
  // Positions and angles are inputs of the step, written before its first kernel starts.
  __device__ Target locate(int token, int pair) const {
    Target target{};
    const int which = matrix_of(pair);
    const int half = head_dim / 2;
    const int d = pair % half;
    target.rotates = which != 2 && rope_cos != nullptr;
    target.cosine = 1.0f;
    if (target.rotates) {
      const size_t angle = static_cast<size_t>(positions[token]) * static_cast<size_t>(half) +
                           static_cast<size_t>(d);
      target.cosine = rope_cos[angle];
      target.sine = rope_sin[angle];
    }
    const int width = which == 0 ? q.rows : k.rows;
    target.at[0] = out(which) + static_cast<size_t>(token) * static_cast<size_t>(width) +
                   static_cast<size_t>(pair / half * head_dim + d);
    target.at[1] = target.at[0] + half;
    return target;
  }
  __device__ void prefetch(Target&) const {}
  __device__ Target redirect(Target target, float* memory) const {
    target.at[0] = memory;
    target.at[1] = memory + 1;
    return target;
  }
  __device__ void store(const Target& target, float low, float high) const {
    if (target.rotates) rotate(low, high, target.cosine, target.sine);
    *target.at[0] = low;
    *target.at[1] = high;
  }

  template <bool kRotates>
  struct Column {
    float* at[2];          // of token 0
    uint32_t token_bytes;  // from a token to the next
    const float* cosine;   // of position 0
    const float* sine;
    uint32_t position_bytes;  // from a position to the next

    struct Loaded {
      float cosine, sine;
    };
    __device__ Loaded load(int, int position) const {
      if constexpr (!kRotates) return {};
      return {*advance(cosine, position, position_bytes), *advance(sine, position, position_bytes)};
    }
    __device__ bool store(int token, const Loaded& loaded, float low, float high) const {
      if constexpr (kRotates) rotate(low, high, loaded.cosine, loaded.sine);
      *advance(at[0], token, token_bytes) = low;
      *advance(at[1], token, token_bytes) = high;
      return true;
    }
  };
  template <class Run>
  __device__ void with_column(int pair, const Run& run) const {
    const int which = matrix_of(pair);
    const int half = head_dim / 2;
    const int d = pair % half;
    float* at = out(which) + (pair / half * head_dim + d);
    const uint32_t token_bytes = row_bytes(which == 0 ? q.rows : k.rows);
    if (which != 2 && rope_cos != nullptr) {
      run(Column<true>{{at, at + half}, token_bytes, rope_cos + d, rope_sin + d, row_bytes(half)});
    } else {
      run(Column<false>{{at, at + half}, token_bytes, nullptr, nullptr, 0});
    }
  }
  __device__ int position(int token) const { return rope_cos != nullptr ? positions[token] : 0; }
  __device__ void note(bool) const {}

 private:
  __device__ static void rotate(float& low, float& high, float cosine, float sine) {
    const float rotated = low * cosine - high * sine;
    high = high * cosine + low * sine;
    low = rotated;
  }
  __device__ float* out(int which) const { return which == 0 ? q_out : which == 1 ? k_out : v_out; }

  // 0, 1, 2 for q, k, v; `pair` becomes the pair's number in that matrix.
  __device__ int matrix_of(int& pair) const {
    if (pair < q.rows / 2) return 0;
    pair -= q.rows / 2;
    if (pair < k.rows / 2) return 1;
    pair -= k.rows / 2;
    return 2;
  }
};

}  // namespace edgellm::cuda
