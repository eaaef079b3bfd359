// Ternary products of rows in groups (Activations::kInt16Group): 16-bit activations as two digits
// of eight bits, exact sums in each group of columns, the groups added in ascending order.
//
// Both kernels make the products of a group, float(W . codes) * unit, wherever it suits them, and
// leave them in shared memory. Then one thread adds those of a weight row in order.
#include <cuda_fp16.h>

#include <utility>

#include "kernels/cuda/device/arg_max.cuh"
#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/quantise.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/ternary_dot.cuh"
#include "kernels/cuda/device/ternary_tile.cuh"
#include "kernels/cuda/groups.h"
#include "kernels/cuda/linear_ops.cuh"

namespace edgellm::cuda {
namespace {

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

GroupMatrices matrices_of(const TernaryMatrix& a, const TernaryMatrix& b, const TernaryMatrix& c) {
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

// Block i: row i.
template <bool kVector>
__global__ void __launch_bounds__(kWideCodeThreads) code_kernel(Input in, CodedGroups out) {
  __shared__ float partial[kPartials];
  const int row = static_cast<int>(blockIdx.x);
  const int t = static_cast<int>(threadIdx.x);
  const int groups = group_count(in.cols);
  let_next_start();
  wait_for_previous();
  const float* x = in.x + static_cast<size_t>(row) * static_cast<size_t>(in.cols);
  uint32_t* high =
      reinterpret_cast<uint32_t*>(out.digits + 2 * static_cast<size_t>(row) * out.row_bytes);
  uint32_t* low = high + out.row_bytes / 4;
  const bool finite = code_row<kVector>(in, x, groups, partial, [&](int g, const CodedQuad& quad) {
    high[g * 32 + t % 32] = quad.high;
    low[g * 32 + t % 32] = quad.low;
    if (t % 32 != 0) return;
    out.unit[g * out.stride + row] = quad.unit;
    out.sum[g * out.stride + row] = quad.sum;
  });
  const bool bad = __syncthreads_or(!finite) != 0;
  float r = 1.0f;
  if (in.gain != nullptr) r = rms_factor(fold_partials(partial), in.cols, in.eps);
  if (t == 0) {
    out.r[row] = r;
    if (bad) set_fault(in.fault, in.layer + 1);
  }
  // A row with such a value is zero.
  for (int g = t; bad && g < groups; g += static_cast<int>(blockDim.x)) {
    out.unit[g * out.stride + row] = 0.0f;
  }
}

// ---- Few rows: GEMV ----------------------------------------------------------------------------

// The weights of a lane for the groups of its warp: of row g of the tile and row g + 8 two words of
// 16 columns for each. Lane 4 g + t has columns 32 t .. 32 t + 31 of a group; mma only asks that
// both sides name the same columns.
struct StepWeights {
  uint2 words[kWarpGroups][2];
  uint32_t scales[kWarpGroups][2];  // as they are in memory
  bool is_half[2];

  __device__ float scale_of(int j, int which) const {
    return widen_scale(scales[j][which], is_half[which]);
  }
};

// The sums of kWarpGroups groups. Rows g of the tile are the first rows of eight pairs, rows g + 8
// their second rows. Columns 2 t and 2 t + 1 of the right side are the high and the low digits of
// token t, so that a lane gets both digits' sums of a pair and a token. `digits`: of the first
// group, [2][2 tokens][4]; `column`: the lane's, or any other where there is no such token.
//
// Each product waits for the one before it with the same sums, so those of two groups take turns.
__device__ __forceinline__ void multiply_groups(const uint2 (&w)[kWarpGroups][2],
                                                const uint4* const (&digits)[kWarpGroups],
                                                int tokens, int column,
                                                int (&sums)[kWarpGroups][4]) {
  constexpr int kTurns = 2;
#pragma unroll
  for (int first = 0; first < kWarpGroups; first += kTurns) {
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      uint32_t a[kTurns][2][4];
      uint4 b[kTurns];
#pragma unroll
      for (int j = 0; j < kTurns; ++j) {
        const uint2(&row_words)[2] = w[first + j];
        unpack_weights(word == 0 ? row_words[0].x : row_words[0].y,
                       word == 0 ? row_words[1].x : row_words[1].y, a[j]);
        b[j] = digits[first + j][word * 8 * tokens + column];
      }
#pragma unroll
      for (int j = 0; j < kTurns; ++j) multiply_tile(sums[first + j], a[j][0], b[j].x, b[j].y);
#pragma unroll
      for (int j = 0; j < kTurns; ++j) multiply_tile(sums[first + j], a[j][1], b[j].z, b[j].w);
    }
  }
}

// Named barriers of the two buffers of products.
constexpr int kFullBarrier = 1;
constexpr int kFreeBarrier = 3;

// Tiles of kGroupGemvPairs pairs, block after block. Eight warps share the groups of a tile out, a
// slab of kSlabGroups at a time: a step. The ninth adds the products of each step, while the others
// make the next ones.
//
// Shared memory: digits [groups][2][2 tokens][4] of 16 bytes (halves of the columns of a lane t,
// digits of the tokens), units and sums [groups][tokens]; products [2][kSlabGroups][32 lanes] of
// two rows, each beside its scale.
template <class Op, bool kVector, bool kCodes>
__global__ void __launch_bounds__(kGroupGemvThreads, kGroupBlocks)
    group_gemv_kernel(Input in, Op op, GroupMatrices m, CodedGroups x, int tokens) {
  extern __shared__ uint4 memory[];
  __shared__ float partial[kPartials];
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const int groups = m.groups;
  uint4* const digits = memory;
  float* const units = reinterpret_cast<float*>(digits + 16 * groups * tokens);
  int* const sums = reinterpret_cast<int*>(units + groups * tokens);
  float4* const products =
      reinterpret_cast<float4*>(memory) + 16 * groups * tokens + divide_up(groups * tokens, 2);
  const int tiles = divide_up(op.pairs(), kGroupGemvPairs);
  const int slabs = divide_up(groups, kSlabGroups);
  const bool adds = warp == kWarps;
  let_next_start();

  // The step whose weights come next: a slab of a tile. What does not exist is read from what does;
  // nothing comes of it.
  int next_tile = static_cast<int>(blockIdx.x);
  int next_slab = 0;
  GroupRow rows[2];
  const auto fetch = [&](StepWeights& to) {
    if (next_slab == 0) {
      const int pair = min(next_tile * kGroupGemvPairs + lane / 4, op.pairs() - 1);
      rows[0] = group_row(op, m, pair, 0);
      rows[1] = group_row(op, m, pair, 1);
      if (rows[1].words == nullptr) rows[1] = rows[0];
    }
    const int first = next_slab * kSlabGroups + warp * kWarpGroups;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const GroupRow& row = rows[which];
#pragma unroll
      for (int j = 0; j < kWarpGroups; ++j) {
        const int word = min(8 * (first + j) + lane % 4 * 2, m.row_words - 2);
        to.words[j][which] = __ldg(reinterpret_cast<const uint2*>(row.words + word));
      }
      to.is_half[which] = row.is_half;
#pragma unroll
      for (int j = 0; j < kWarpGroups; ++j) {
        to.scales[j][which] = row.raw_scale(min(first + j, groups - 1));
      }
    }
    if (++next_slab < slabs) return;
    next_slab = 0;
    next_tile += static_cast<int>(gridDim.x);
  };
  StepWeights weights;
  if (!adds) fetch(weights);
  wait_for_previous();

  bool bad = false;
  if constexpr (kCodes) {
    uint32_t* const words = reinterpret_cast<uint32_t*>(digits);
    const bool finite =
        code_row<kVector>(in, in.x, groups, partial, [&](int g, const CodedQuad& quad) {
          // Lane l has columns 4 l .. 4 l + 3: of lane l / 8 the half l / 4 % 2.
          const int at = (g * 16 + lane / 4 % 2 * 8 + lane / 8) * 4 + lane % 4;
          words[at] = quad.high;
          words[at + 16] = quad.low;
          if (lane != 0) return;
          units[g] = quad.unit;
          sums[g] = quad.sum;
        });
    bad = __syncthreads_or(!finite) != 0;
    if (t == 0 && blockIdx.x == 0 && bad) set_fault(in.fault, in.layer + 1);
  } else {
    const int row_words = static_cast<int>(x.row_bytes / 16);
    for (int i = t; i < 16 * groups * tokens; i += kGroupGemvThreads) {
      // Word `half` of lane `quarter`, digit n % 2 of token n / 2.
      const int quarter = i % 4;
      const int n = i / 4 % (2 * tokens);
      const int half = i / (8 * tokens) % 2;
      const int group = i / (16 * tokens);
      digits[i] =
          reinterpret_cast<const uint4*>(x.digits)[n * row_words + group * 8 + quarter * 2 + half];
    }
    for (int i = t; i < groups * tokens; i += kGroupGemvThreads) {
      units[i] = x.unit[i / tokens * x.stride + i % tokens];
      sums[i] = x.sum[i / tokens * x.stride + i % tokens];
    }
    __syncthreads();
  }

  const int token = lane % 4;
  int tile = static_cast<int>(blockIdx.x);
  int slab = 0;
  int turn = 0;          // of the products
  bool is_early = true;  // the buffer has not been used yet
  const auto advance = [&] {
    is_early = is_early && turn == 0;
    turn ^= 1;
    if (++slab < slabs) return;
    slab = 0;
    tile += static_cast<int>(gridDim.x);
  };
  if (adds) {
    float r = 1.0f;
    if constexpr (kCodes) {
      if (in.gain != nullptr) r = rms_factor(fold_partials(partial), in.cols, in.eps);
    } else if (token < tokens) {
      r = x.r[token];
    }
    typename Op::Target target{};
    float results[2] = {0.0f, 0.0f};
    while (tile < tiles) {
      const int pair = tile * kGroupGemvPairs + lane / 4;
      const bool stores = token < tokens && pair < op.pairs();
      if (stores && slab == 0) {
        target = op.locate(token, pair);
        op.prefetch(target);
      }
      const float4* const buffer = products + turn * (kSlabGroups * 32);
      barrier_sync(kFullBarrier + turn, kGroupGemvThreads);
      const int n = min(kSlabGroups, groups - slab * kSlabGroups);
#pragma unroll 8
      for (int g = 0; g < n; ++g) {
        const float4 p = buffer[g * 32 + lane];
        results[0] = fmaf(p.x, p.y, results[0]);
        results[1] = fmaf(p.z, p.w, results[1]);
      }
      barrier_arrive(kFreeBarrier + turn, kGroupGemvThreads);
      if (slab == slabs - 1) {
        if (stores) op.store(target, results[0] * r, results[1] * r);
        results[0] = results[1] = 0.0f;
      }
      advance();
    }
    return;
  }

  const int own_token = min(token, tokens - 1);
  const int column = min(lane, 8 * tokens - 1);
  while (tile < tiles) {
    const int first = slab * kSlabGroups + warp * kWarpGroups;
    int dots[kWarpGroups][4] = {};
    const uint4* of_group[kWarpGroups];
#pragma unroll
    for (int j = 0; j < kWarpGroups; ++j) {
      of_group[j] = digits + 16 * tokens * min(first + j, groups - 1);
    }
    multiply_groups(weights.words, of_group, tokens, column, dots);
    float4* const buffer = products + turn * (kSlabGroups * 32) + warp * kWarpGroups * 32 + lane;
    float4 made[kWarpGroups];
#pragma unroll
    for (int j = 0; j < kWarpGroups; ++j) {
      const int at = min(first + j, groups - 1) * tokens + own_token;
      const int sum = sums[at];
      const float unit = bad ? 0.0f : units[at];
      made[j].x = static_cast<float>(unscaled(256 * dots[j][0] + dots[j][1]) - sum) * unit;
      made[j].y = weights.scale_of(j, 0);
      made[j].z = static_cast<float>(unscaled(256 * dots[j][2] + dots[j][3]) - sum) * unit;
      made[j].w = weights.scale_of(j, 1);
    }
    fetch(weights);
    if (!is_early) barrier_sync(kFreeBarrier + turn, kGroupGemvThreads);
    if (token < tokens) {
#pragma unroll
      for (int j = 0; j < kWarpGroups; ++j) buffer[32 * j] = made[j];
    }
    barrier_arrive(kFullBarrier + turn, kGroupGemvThreads);
    advance();
  }
}

// ---- Tiles -------------------------------------------------------------------------------------

// The weights of a lane for a group: of rows g and g + 8 of the first and of the second rows of
// sixteen pairs, two words of 16 columns. Lane 4 g + t has columns 32 t .. 32 t + 31; mma only asks
// that both sides name the same columns.
struct GroupWeights {
  uint2 words[2][2];
};

// The cut of a block's tile (GroupTile) as constants.
template <int kTile>
struct GroupTiling {
  static constexpr GroupTile kCut = kGroupTiles[kTile];
  static constexpr int kTokenTiles = kCut.token_tiles;
  static constexpr int kWarpGroups = kCut.warp_groups;
  static constexpr int kSlab = kCut.slab();
  static constexpr int kTokens = kCut.tokens();
  static constexpr int kRows = 2 * kGroupTilePairs;
  static constexpr int kScaleStride = kSlab + 1;
};

// Block (i, j): tile i of the pairs, tile j of the tokens.
template <class Op, class T>
__global__ void __launch_bounds__(kThreads, kGroupBlocks)
    group_tile_kernel(Op op, GroupMatrices m, CodedGroups x, int tokens) {
  constexpr int kTokenTiles = T::kTokenTiles;
  constexpr int kWarpGroups = T::kWarpGroups;
  constexpr int kSlab = T::kSlab;
  constexpr int kTokens = T::kTokens;
  constexpr int kRows = T::kRows;
  extern __shared__ uint4 memory[];
  float* const products = reinterpret_cast<float*>(memory);  // [kSlab][kRows][kTokens]
  float* const scales = products + kSlab * kRows * kTokens;  // [kRows][kScaleStride]
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const int first_pair = static_cast<int>(blockIdx.x) * kGroupTilePairs;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const int n_pairs = min(kGroupTilePairs, op.pairs() - first_pair);
  let_next_start();

  const uint32_t* rows[2][2];
#pragma unroll
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = lane / 4 + 8 * half;
      rows[which][half] =
          pair < n_pairs ? group_row(op, m, first_pair + pair, which).words : nullptr;
    }
  }
  const auto fetch = [&](int slab, GroupWeights(&to)[kWarpGroups]) {
#pragma unroll
    for (int j = 0; j < kWarpGroups; ++j) {
      const int word = (slab * kSlab + warp * kWarpGroups + j) * 8 + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t* row = rows[i / 2][i % 2];
        to[j].words[i / 2][i % 2] = row != nullptr && word < m.row_words
                                        ? *reinterpret_cast<const uint2*>(row + word)
                                        : make_uint2(0, 0);
      }
    }
  };
  static_assert(kThreads == 8 * kRows, "eight threads fetch the scales of a row");
  const int scale_pair = t / 8 % kGroupTilePairs;
  const GroupRow scale_row =
      scale_pair < n_pairs ? group_row(op, m, first_pair + scale_pair, t / 128) : GroupRow{};
  GroupWeights weights[kWarpGroups];
  fetch(0, weights);
  wait_for_previous();

  float sums[kTokenTiles] = {};  // of row (t + 256 k) / kTokens, token (t + 256 k) % kTokens
  const int slabs = divide_up(m.groups, kSlab);
#pragma unroll 1
  for (int slab = 0; slab < slabs; ++slab) {
    GroupWeights next[kWarpGroups];
    fetch(slab + 1, next);
#pragma unroll
    for (int i = 0; i < kSlab / 8; ++i) {
      const int in_slab = t % 8 * (kSlab / 8) + i;
      const int group = min(slab * kSlab + in_slab, m.groups - 1);
      scales[t / 8 * T::kScaleStride + in_slab] =
          scale_row.words != nullptr ? scale_row.widen(scale_row.raw_scale(group)) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kWarpGroups; ++j) {
      const int in_slab = warp * kWarpGroups + j;
      const int group = slab * kSlab + in_slab;
      if (group >= m.groups) break;
      uint32_t a[2][2][2][4];  // which, word, half of its columns
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        const uint2 low = weights[j].words[which][0];
        const uint2 high = weights[j].words[which][1];
        unpack_weights(low.x, high.x, a[which][0]);
        unpack_weights(low.y, high.y, a[which][1]);
      }
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        const int token = min(first_token + 8 * n + lane / 4, tokens - 1);
        const uint4* const digits =
            reinterpret_cast<const uint4*>(x.digits + 2 * static_cast<size_t>(token) * x.row_bytes +
                                           group * kScaleGroup + lane % 4 * 32);
        const uint4* const low_digits = digits + x.row_bytes / 16;
        const uint4 b[2][2] = {{digits[0], digits[1]}, {low_digits[0], low_digits[1]}};
        const int at = group * x.stride + min(first_token + 8 * n + lane % 4 * 2, x.stride - 2);
        const float2 unit = *reinterpret_cast<const float2*>(x.unit + at);
        const int2 code_sum = *reinterpret_cast<const int2*>(x.sum + at);
        int all[2][2][4] = {};  // which row; of high digits, of low digits
                                // Products that wait for each other take turns with others.
#pragma unroll
        for (int word = 0; word < 2; ++word) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint4 codes = b[i % 2][word];
            multiply_tile(all[i / 2][i % 2], a[i / 2][word][0], codes.x, codes.y);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint4 codes = b[i % 2][word];
            multiply_tile(all[i / 2][i % 2], a[i / 2][word][1], codes.z, codes.w);
          }
        }
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          const int(&dots)[2][4] = all[which];
          // Accumulators 0 and 1 are row g with tokens 2 t and 2 t + 1, 2 and 3 are row g + 8.
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int first = unscaled(256 * dots[0][2 * half] + dots[1][2 * half]) - code_sum.x;
            const int second =
                unscaled(256 * dots[0][2 * half + 1] + dots[1][2 * half + 1]) - code_sum.y;
            const int row = 16 * which + 8 * half + lane / 4;
            float* to = products + (in_slab * kRows + row) * kTokens + 8 * n + lane % 4 * 2;
            *reinterpret_cast<float2*>(to) = make_float2(static_cast<float>(first) * unit.x,
                                                         static_cast<float>(second) * unit.y);
          }
        }
      }
    }
    __syncthreads();
    const int n_groups = min(kSlab, m.groups - slab * kSlab);
#pragma unroll
    for (int k = 0; k < kTokenTiles; ++k) {
      const int i = t + kThreads * k;
#pragma unroll 8
      for (int g = 0; g < n_groups; ++g) {
        sums[k] = fmaf(products[g * kRows * kTokens + i], scales[i / kTokens * T::kScaleStride + g],
                       sums[k]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kWarpGroups; ++j) weights[j] = next[j];
  }

#pragma unroll
  for (int k = 0; k < kTokenTiles; ++k) products[t + kThreads * k] = sums[k];
  __syncthreads();
#pragma unroll 1
  for (int i = t; i < kGroupTilePairs * kTokens; i += kThreads) {
    const int pair = i % kGroupTilePairs;
    const int token = i / kGroupTilePairs;
    if (pair >= n_pairs || first_token + token >= tokens) continue;
    typename Op::Target target = op.locate(first_token + token, first_pair + pair);
    op.prefetch(target);
    const float r = x.r[first_token + token];
    op.store(target, products[pair * kTokens + token] * r,
             products[(pair + 16) * kTokens + token] * r);
  }
}

// ---- Many rows: GEMM ---------------------------------------------------------------------------

// A block makes a tile of kGroupGemmPairs pairs with kGroupGemmTokens tokens, a group at a time: a
// stage. Each of its warps, four along the pairs and two along the tokens, has two tiles of eight
// pairs with eight tiles of four tokens, whose rows and columns are those of multiply_groups().
struct GroupStage {
  static constexpr int kWeights = 2 * kGroupGemmPairs * 32;  // [row][32 bytes]
  static constexpr int kDigits =
      kGroupGemmTokens * 2 * kScaleGroup;              // [token][2 digits][128 bytes]
  static constexpr int kUnits = kGroupGemmTokens * 4;  // and as many for sums
  static constexpr int kBytes = kWeights + kDigits + 2 * kUnits;
};
static_assert(GroupStage::kBytes == kGroupStageBytes);

// Block (i, j): tile i of the pairs, tile j of the tokens.
template <class Op>
__global__ void __launch_bounds__(kThreads, kGroupBlocks)
    group_gemm_kernel(Op op, GroupMatrices m, CodedGroups x, int tokens) {
  constexpr int kRows = 2 * kGroupGemmPairs;
  constexpr int kTokens = kGroupGemmTokens;
  constexpr int kPairTiles = 2;    // of a warp, 8 pairs each
  constexpr int kTokenTiles = 8;   // of a warp, 4 tokens each
  constexpr int kScaleGroups = 8;  // whose scales come together: of a row they are one sector
  static_assert(kRows * 2 == kThreads && kTokens * 16 == 4 * kThreads &&
                4 * kPairTiles * 16 == kRows);
  extern __shared__ uint4 memory[];
  __shared__ float scales[2][kScaleGroups][kRows];
  int8_t* const shared = reinterpret_cast<int8_t*>(memory);
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const int first_pair = static_cast<int>(blockIdx.x) * kGroupGemmPairs;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const int groups = m.groups;
  let_next_start();

  // Thread t copies half t % 2 of row t / 2 of the weights. Row 16 i + j of the tile is the first
  // row of pair 8 i + j for j < 8, then the second row of pair 8 i + j - 8.
  const auto row_of = [&](int row) {
    const int pair = min(first_pair + row / 16 * 8 + row % 8, op.pairs() - 1);
    const GroupRow found = group_row(op, m, pair, row / 8 % 2);
    return found.words != nullptr ? found : group_row(op, m, pair, 0);
  };
  const uint4* const weights_from = reinterpret_cast<const uint4*>(row_of(t / 2).words) + t % 2;
  // Thread t fetches half of the scales of row t % kRows.
  constexpr int kOwnScales = kScaleGroups / 2;
  const GroupRow own_row = row_of(t % kRows);
  const int first_scale = t / kRows * kOwnScales;
  uint32_t raw_scales[kOwnScales];
  const auto fetch_scales = [&](int group) {
#pragma unroll
    for (int i = 0; i < kOwnScales; ++i) {
      raw_scales[i] = own_row.raw_scale(min(group + first_scale + i, groups - 1));
    }
  };
  const auto put_scales = [&](int group) {
#pragma unroll
    for (int i = 0; i < kOwnScales; ++i) {
      scales[group / kScaleGroups % 2][first_scale + i][t % kRows] = own_row.widen(raw_scales[i]);
    }
  };
  fetch_scales(0);
  // Copies of digits: of token t / 16 + 16 i word t % 8 of digit t / 8 % 2. The words of the low
  // digits are swapped in twos, so that a read of a word of both digits meets all banks.
  const int digit = t / 8 % 2;
  const int8_t* const digits_from =
      x.digits + static_cast<size_t>(digit) * x.row_bytes + t % 8 * 16;
  int8_t* const digits_to = shared + GroupStage::kWeights + t / 16 * 2 * kScaleGroup +
                            digit * kScaleGroup + (t % 8 ^ digit) * 16;
  const auto fetch_weights = [&](int stage, int group) {
    const bool valid = group < groups && 8 * group + t % 2 * 4 < m.row_words;
    copy_async_or_zero(shared + stage * GroupStage::kBytes + 16 * t,
                       weights_from + (valid ? 2 * group : 0), valid);
  };
  const auto fetch_digits = [&](int stage, int group) {
    const bool valid = group < groups;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first_token + t / 16 + 16 * i;
      const bool exists = valid && token < tokens;
      copy_async_or_zero(digits_to + stage * GroupStage::kBytes + i * 16 * 2 * kScaleGroup,
                         digits_from + (exists ? 2 * static_cast<size_t>(token) * x.row_bytes +
                                                     static_cast<size_t>(group) * kScaleGroup
                                               : 0),
                         exists);
    }
    if (t < kTokens / 2) {
      // Four units or four sums; x.stride has room for whole eights of tokens.
      const int token = first_token + t % (kTokens / 4) * 4;
      const bool is_sum = t >= kTokens / 4;
      const bool exists = valid && token < x.stride;
      const int at = exists ? group * x.stride + token : 0;
      copy_async_or_zero(
          shared + stage * GroupStage::kBytes + GroupStage::kWeights + GroupStage::kDigits + 16 * t,
          is_sum ? static_cast<const void*>(x.sum + at) : static_cast<const void*>(x.unit + at),
          exists);
    }
  };
#pragma unroll
  for (int s = 0; s < kGroupStages - 1; ++s) fetch_weights(s, s);
  wait_for_previous();
#pragma unroll
  for (int s = 0; s < kGroupStages - 1; ++s) {
    fetch_digits(s, s);
    end_of_copies();
  }
  put_scales(0);
  fetch_scales(kScaleGroups);

  const int warp_row = warp % 4 * (16 * kPairTiles);
  const int warp_token = warp / 4 * (4 * kTokenTiles);
  float results[kPairTiles][kTokenTiles][2] = {};
  int stage = 0;
#pragma unroll 1
  for (int group = 0; group < groups; ++group) {
    wait_for_copies_but<kGroupStages - 2>();
    // This stage has arrived for every thread, and every warp is done with the one before, which
    // is filled next.
    __syncthreads();
    const int free_stage = stage == 0 ? kGroupStages - 1 : stage - 1;
    fetch_weights(free_stage, group + kGroupStages - 1);
    fetch_digits(free_stage, group + kGroupStages - 1);
    end_of_copies();
    if (group % kScaleGroups == kScaleGroups / 2) {
      put_scales(group + kScaleGroups / 2);
      fetch_scales(group + kScaleGroups / 2 + kScaleGroups);
    }

    const int8_t* const weights = shared + stage * GroupStage::kBytes;
    const uint4* const digits = reinterpret_cast<const uint4*>(weights + GroupStage::kWeights);
    const float* const units =
        reinterpret_cast<const float*>(weights + GroupStage::kWeights + GroupStage::kDigits);
    const int* const sums = reinterpret_cast<const int*>(units + kTokens);
    uint32_t a[kPairTiles][2][2][4];
    float scale[kPairTiles][2];
#pragma unroll
    for (int i = 0; i < kPairTiles; ++i) {
      const int row = warp_row + 16 * i + lane / 4;
      const uint2* const words = reinterpret_cast<const uint2*>(weights + 32 * row) + lane % 4;
      const uint2 low = words[0];
      const uint2 high = words[8 * 4];
      unpack_weights(low.x, high.x, a[i][0]);
      unpack_weights(low.y, high.y, a[i][1]);
      const float* const of_rows = scales[group / kScaleGroups % 2][group % kScaleGroups];
      scale[i][0] = of_rows[row];
      scale[i][1] = of_rows[row + 8];
    }
    // Products that wait for each other take turns with those of other tiles.
    constexpr int kTurns = 2;
#pragma unroll
    for (int first = 0; first < kTokenTiles; first += kTurns) {
      int dots[kTurns][kPairTiles][4] = {};
      uint4 b[kTurns][2];
#pragma unroll
      for (int n = 0; n < kTurns; ++n) {
        // Lane 8 i + 4 d + q: words 2 q and 2 q + 1 of digit d of token i.
        const int digit_of_lane = lane / 4 % 2;
        const uint4* const from =
            digits + (warp_token + 4 * (first + n) + lane / 8) * (2 * kScaleGroup / 16) +
            digit_of_lane * (kScaleGroup / 16) + lane % 4 * 2;
        b[n][0] = from[digit_of_lane];
        b[n][1] = from[1 - digit_of_lane];
      }
#pragma unroll
      for (int word = 0; word < 2; ++word) {
#pragma unroll
        for (int n = 0; n < kTurns; ++n) {
#pragma unroll
          for (int i = 0; i < kPairTiles; ++i) {
            multiply_tile(dots[n][i], a[i][word][0], b[n][word].x, b[n][word].y);
          }
        }
#pragma unroll
        for (int n = 0; n < kTurns; ++n) {
#pragma unroll
          for (int i = 0; i < kPairTiles; ++i) {
            multiply_tile(dots[n][i], a[i][word][1], b[n][word].z, b[n][word].w);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kTurns; ++n) {
        const int token = warp_token + 4 * (first + n) + lane % 4;
        const float unit = units[token];
        const int sum = sums[token];
#pragma unroll
        for (int i = 0; i < kPairTiles; ++i) {
#pragma unroll
          for (int which = 0; which < 2; ++which) {
            const int dot = unscaled(256 * dots[n][i][2 * which] + dots[n][i][2 * which + 1]) - sum;
            float& result = results[i][first + n][which];
            result = fmaf(static_cast<float>(dot) * unit, scale[i][which], result);
          }
        }
      }
    }
    stage = stage + 1 == kGroupStages ? 0 : stage + 1;
  }
  wait_for_copies();

#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    const int token = first_token + warp_token + 4 * n + lane % 4;
    if (token >= tokens) continue;
    const float r = x.r[token];
#pragma unroll
    for (int i = 0; i < kPairTiles; ++i) {
      const int pair = first_pair + warp_row / 2 + 8 * i + lane / 4;
      if (pair >= op.pairs()) continue;
      typename Op::Target target = op.locate(token, pair);
      op.prefetch(target);
      op.store(target, results[i][n][0] * r, results[i][n][1] * r);
    }
  }
}

// ---- Arg-max -----------------------------------------------------------------------------------

// Block (i, j): part i of the logits of row j.
__global__ void __launch_bounds__(kThreads) arg_max_kernel(HeadArgs args, Workspace workspace) {
  __shared__ unsigned long long block_best;
  const int t = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  let_next_start();
  wait_for_previous();
  if (t == 0) block_best = 0;
  __syncthreads();
  const float* logits = args.logits + static_cast<size_t>(row) * static_cast<size_t>(args.w.rows);
  uint64_t best = 0;
  for (int v = static_cast<int>(blockIdx.x) * kThreads + t; v < args.w.rows;
       v += static_cast<int>(gridDim.x) * kThreads) {
    best = max(best, allowed_key(args, v, logits[v]));
  }
  if (best != 0) atomicMax(&block_best, static_cast<unsigned long long>(best));
  __syncthreads();
  if (t == 0) atomicMax(workspace.best + row, block_best);
  end_of_best(args, workspace, static_cast<int>(gridDim.x * gridDim.y));
}

// ---- Launches ----------------------------------------------------------------------------------

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool by_fours(const Input& in) {
  return in.cols % 4 == 0 && is_aligned(in.x) && is_aligned(in.gain);
}

// Codes the rows by a launch of its own, where the plan has one.
CodedGroups code_rows(const LaunchSize& size, const Input& in, int rows, const Workspace& workspace,
                      cudaStream_t stream) {
  const CodedGroups coded{workspace.codes, workspace.group_unit,         workspace.group_sum,
                          workspace.row_r, quantised_row_bytes(in.cols), group_stride(rows)};
  if (size.threads > 0) {
    launch(by_fours(in) ? code_kernel<true> : code_kernel<false>, size, stream, in, coded);
  }
  return coded;
}

template <class Op>
void multiply(const GroupGemvPlan& plan, const Input& in, const Op& op, const GroupMatrices& m,
              int rows, const Workspace& workspace, cudaStream_t stream) {
  const CodedGroups coded = code_rows(plan.code, in, rows, workspace, stream);
  const auto kernel = plan.code.threads > 0 ? group_gemv_kernel<Op, true, false>
                      : by_fours(in)        ? group_gemv_kernel<Op, true, true>
                                            : group_gemv_kernel<Op, false, true>;
  launch(kernel, plan.launch, stream, in, op, m, coded, rows);
}

template <class Op>
void multiply(const GroupGemmPlan& plan, const Input& in, const Op& op, const GroupMatrices& m,
              int rows, const Workspace& workspace, cudaStream_t stream) {
  const CodedGroups coded = code_rows(plan.code, in, rows, workspace, stream);
  launch(group_gemm_kernel<Op>, plan.launch, stream, op, m, coded, rows);
}

template <class Op, size_t... I>
void launch_tile(const GroupTilePlan& plan, const Op& op, const GroupMatrices& m,
                 const CodedGroups& x, int rows, cudaStream_t stream, std::index_sequence<I...>) {
  const auto launch_if = [&](bool is_instance, auto kernel) {
    if (is_instance) launch(kernel, plan.launch, stream, op, m, x, rows);
    return is_instance;
  };
  require_instance((launch_if(plan.tile == static_cast<int>(I),
                              group_tile_kernel<Op, GroupTiling<static_cast<int>(I)>>) ||
                    ...));
}

template <class Op>
void multiply(const GroupTilePlan& plan, const Input& in, const Op& op, const GroupMatrices& m,
              int rows, const Workspace& workspace, cudaStream_t stream) {
  const CodedGroups coded = code_rows(plan.code, in, rows, workspace, stream);
  launch_tile(plan, op, m, coded, rows, stream, std::make_index_sequence<kNumGroupTiles>());
}

template <class Op>
void run(PickGroups pick, const Input& in, const Op& op, const GroupMatrices& m, int rows,
         const Workspace& workspace, cudaStream_t stream) {
  const LinearSize size{rows, in.cols, op.pairs(), in.gain != nullptr, by_fours(in)};
  std::visit([&](const auto& plan) { multiply(plan, in, op, m, rows, workspace, stream); },
             pick(size, current_device()));
}

}  // namespace

void qkv_groups(const QkvArgs& args, PickGroups pick, const Workspace& workspace,
                cudaStream_t stream) {
  const QkvOp op{args.q,        args.k,        args.v,         words_per_row(args.dim),
                 args.rope_cos, args.rope_sin, args.positions, args.q_out,
                 args.k_out,    args.v_out,    args.head_dim};
  run(pick, {args.x, args.gain, args.eps, args.dim, args.fault, args.layer}, op,
      matrices_of(args.q, args.k, args.v), args.rows, workspace, stream);
}

void project_groups(const ProjectArgs& args, PickGroups pick, const Workspace& workspace,
                    cudaStream_t stream) {
  const ProjectOp op{args.w, words_per_row(args.w.cols), args.x, args.fault, args.layer};
  run(pick, {args.y, args.gain, args.eps, args.w.cols, args.fault, args.layer}, op,
      matrices_of(args.w, args.w, args.w), args.rows, workspace, stream);
}

void ffn_up_groups(const FfnUpArgs& args, PickGroups pick, const Workspace& workspace,
                   cudaStream_t stream) {
  const FfnUpOp op{args.gate, args.up, words_per_row(args.gate.cols), args.act, args.u};
  run(pick, {args.x, args.gain, args.eps, args.gate.cols, args.fault, args.layer}, op,
      matrices_of(args.gate, args.up, args.up), args.rows, workspace, stream);
}

void head_groups(const HeadArgs& args, PickGroups pick, const Workspace& workspace,
                 cudaStream_t stream) {
  const TernaryMatrix& w = args.ternary;
  const LogitsOp op{args.logits, w.rows, args.fault, args.layers + 1};
  run(pick, {args.normed, nullptr, 0.0f, w.cols, args.fault, args.layers}, op, matrices_of(w, w, w),
      args.rows, workspace, stream);
  if (args.argmax == nullptr) return;
  const dim3 grid(static_cast<unsigned>(std::min(64, divide_up(w.rows, kThreads))),
                  static_cast<unsigned>(args.rows));
  launch(arg_max_kernel, grid, dim3(kThreads), 0, stream, args, workspace);
}

}  // namespace edgellm::cuda
