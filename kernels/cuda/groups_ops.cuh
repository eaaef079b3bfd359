// What the ternary products of rows in groups share (Activations::kInt16Group): 16-bit activations
// as two digits of eight bits, exact sums in each group of columns, the groups added in ascending
// order. groups.cu dispatches; the kernels are in groups_code.cu, groups_gemv.cu, groups_tiles.cu
// and groups_gemm.cu.
//
// All of them make the products of a group, float(W . codes) * unit, wherever it suits them. Then
// one thread adds those of a weight row in order.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/device/quantise.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/linear_ops.cuh"
#include "kernels/cuda/plan/groups.h"

namespace edgellm::cuda {

// ---- Weights -----------------------------------------------------------------------------------

// A TernaryMatrix: where the words and the scales of a row are.
struct GroupMatrix {
  const uint32_t* words = nullptr;
  const void* scale = nullptr;
  int row_scales = 0;  // from a row's scales to the next row's
  int step = 0;        // from a group's scale to the next one's: 1, or 0 for a scale of the row
  bool is_half = false;

  GroupMatrix() = default;
  explicit GroupMatrix(const TernaryMatrix& w)
      : words(reinterpret_cast<const uint32_t*>(w.codes)),
        scale(w.n_scales > 0 ? w.scale : w.group_scale),
        row_scales(w.n_scales == 1  ? 0
                   : w.n_scales > 1 ? 1
                                    : group_count(w.cols)),
        step(w.n_scales > 0 ? 0 : 1),
        is_half(w.n_scales == 0 && w.group_scale_type == DenseType::kF16) {}
};

struct GroupMatrices {
  GroupMatrix of[3];
  int row_words;
  int groups;
};

inline GroupMatrices matrices_of(const TernaryMatrix& a, const TernaryMatrix& b,
                                 const TernaryMatrix& c) {
  return {
      {GroupMatrix(a), GroupMatrix(b), GroupMatrix(c)}, words_per_row(a.cols), group_count(a.cols)};
}

__device__ __forceinline__ float widen_scale(uint32_t raw, bool is_half) {
  return is_half ? __half2float(__ushort_as_half(static_cast<unsigned short>(raw)))
                 : __uint_as_float(raw);
}

// A weight row.
struct GroupRow {
  const uint32_t* words;  // null: no such row
  const void* scale;
  int step;
  bool is_half;

  // A group's scale as it is in memory, and what that is.
  __device__ uint32_t raw_scale(int group) const {
    const int i = group * step;
    return is_half ? __ldg(static_cast<const uint16_t*>(scale) + i)
                   : __ldg(static_cast<const uint32_t*>(scale) + i);
  }
  __device__ float widen(uint32_t raw) const { return widen_scale(raw, is_half); }
};

template <class Op>
__device__ __forceinline__ GroupRow group_row(const Op& op, const GroupMatrices& m, int pair,
                                              int which) {
  const RowPlace at = op.place(pair, which);
  if (at.matrix < 0) return {};
  // Selected field by field: a reference would put the arguments into local memory.
  const auto select = [&](auto a, auto b, auto c) {
    return at.matrix == 0 ? a : at.matrix == 1 ? b : c;
  };
  const bool is_half = select(m.of[0].is_half, m.of[1].is_half, m.of[2].is_half);
  const int row_scales = select(m.of[0].row_scales, m.of[1].row_scales, m.of[2].row_scales);
  const size_t row = static_cast<size_t>(at.row);
  return {
      select(m.of[0].words, m.of[1].words, m.of[2].words) + row * static_cast<size_t>(m.row_words),
      static_cast<const uint8_t*>(select(m.of[0].scale, m.of[1].scale, m.of[2].scale)) +
          row * static_cast<size_t>(row_scales) * (is_half ? 2 : 4),
      select(m.of[0].step, m.of[1].step, m.of[2].step), is_half};
}

// The logits of a ternary head: any two rows are a pair.
struct LogitsOp {
  float* logits;  // [tokens, vocab]
  int vocab;
  int32_t* fault;
  int value;  // of a fault

  struct Target {
    float* at[2];
  };

  __host__ __device__ int pairs() const { return (vocab + 1) / 2; }
  __device__ RowPlace place(int pair, int which) const {
    const int row = pair + which * pairs();
    return {row < vocab ? 0 : -1, row};
  }
  __device__ Target locate(int token, int pair) const {
    float* row = logits + static_cast<size_t>(token) * static_cast<size_t>(vocab);
    return {row + pair, pair + pairs() < vocab ? row + pair + pairs() : nullptr};
  }
  __device__ void prefetch(Target&) const {}
  __device__ void store(const Target& target, float a, float b) const {
    *target.at[0] = a;
    if (target.at[1] != nullptr) *target.at[1] = b;
    if (!isfinite(a) || (target.at[1] != nullptr && !isfinite(b))) set_fault(fault, value);
  }
};

// ---- Activations -------------------------------------------------------------------------------

// Coded rows ("tokens").
struct CodedGroups {
  int8_t* digits;  // [tokens, 2, row_bytes]: high digits, low digits, zeros behind the last column
  float* unit;     // [groups, stride]
  int32_t* sum;    // [groups, stride] of the codes
  float* r;        // [tokens]
  size_t row_bytes;
  int stride;
};

// What a lane makes of its four columns of a group, and the warp of the group.
struct CodedQuad {
  uint32_t high, low;
  int sum;
  float unit;
  bool finite;
};

__device__ __forceinline__ CodedQuad code_group(float4 z) {
  const uint32_t largest = max_warp(magnitude(z));
  const bool finite = largest < 0x7f800000u;
  const float amax = fmaxf(__uint_as_float(largest), 1e-30f);
  const bool zero = !finite || largest == 0;
  const float per_unit = zero ? 0.0f : kMaxGroupCode / amax;
  // Rounded to the nearest integer by the addition; values that are not finite have code 0.
  const auto code = [&](float value) {
    return __float_as_uint((finite ? value * per_unit : 0.0f) + 12582912.0f);
  };
  const uint32_t c[4] = {code(z.x), code(z.y), code(z.z), code(z.w)};
  CodedQuad quad;
  // A code is 256 high + low: the low digit is its lowest byte, and 128 more carry into the next.
  quad.low = __byte_perm(__byte_perm(c[0], c[1], 0x0040), __byte_perm(c[2], c[3], 0x0040), 0x5410);
  quad.high = __byte_perm(__byte_perm(c[0] + 128, c[1] + 128, 0x0051),
                          __byte_perm(c[2] + 128, c[3] + 128, 0x0051), 0x5410);
  quad.sum = sum_warp(static_cast<int>(c[0] + c[1] + c[2] + c[3] - 4u * 0x4b400000u));
  quad.unit = zero ? 0.0f : amax / kMaxGroupCode;
  quad.finite = finite;
  return quad;
}

// Codes a row by the threads of a block, at least kThreads: `put(group, quad)` takes what each lane
// has made of each group. Returns whether all values are finite. `partial` [kPartials] becomes the
// partial sums of the squares, where there is a gain. The block has to meet before it reads what it
// wrote.
template <bool kVector, class Put>
__device__ __forceinline__ bool code_row(const Input& in, const float* x, int groups,
                                         float* partial, const Put& put) {
  constexpr int kBatch = 4;  // groups of a warp whose loads are on their way together
  const int t = static_cast<int>(threadIdx.x);
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int column = t % 32 * 4;
  bool finite = true;
#pragma unroll 1
  for (int first = t / 32; first < groups; first += kBatch * warps) {
    float4 z[kBatch];
    float4 gain[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int at = (first + j * warps) * kScaleGroup + column;
      z[j] = four<kVector>(x, at, in.cols);
      if (in.gain != nullptr) gain[j] = four<kVector>(in.gain, at, in.cols);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (first + j * warps >= groups) break;
      if (in.gain != nullptr) z[j] = product(z[j], gain[j]);
      const CodedQuad quad = code_group(z[j]);
      finite = finite && quad.finite;
      put(first + j * warps, quad);
    }
  }
  if (in.gain != nullptr && t < kPartials) {
    float squares = 0.0f;
#pragma unroll 8
    for (int i = t; i < in.cols; i += kPartials) squares = fmaf(x[i], x[i], squares);
    partial[t] = squares;
  }
  return finite;
}

// Whether rows and gain can be loaded four columns at a time.
inline bool by_fours(const Input& in) {
  return in.cols % 4 == 0 && is_aligned(in.x) && is_aligned(in.gain);
}

// ---- Kernels -----------------------------------------------------------------------------------

// groups_code.cu: codes the rows by a launch of its own, where the plan has one.
CodedGroups code_groups(const LaunchSize& size, const Input& in, int rows,
                        const Workspace& workspace, cudaStream_t stream);

// Products by plan, each instantiated for the ops of linear_ops.cuh and LogitsOp. groups_gemv.cu:
template <class Op>
void multiply(const GroupGemvPlan& plan, const Input& in, const Op& op, const GroupMatrices& m,
              int rows, const Workspace& workspace, cudaStream_t stream);
// groups_tiles.cu:
template <class Op>
void multiply(const GroupTilePlan& plan, const Input& in, const Op& op, const GroupMatrices& m,
              int rows, const Workspace& workspace, cudaStream_t stream);
// groups_gemm.cu:
template <class Op>
void multiply(const GroupGemmPlan& plan, const Input& in, const Op& op, const GroupMatrices& m,
              int rows, const Workspace& workspace, cudaStream_t stream);

}  // namespace edgellm::cuda
