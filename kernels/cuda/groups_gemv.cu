// Ternary products of few rows in groups: one row codes itself, more are coded by groups_code.cu.
#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/ternary_dot.cuh"
#include "kernels/cuda/device/ternary_tile.cuh"
#include "kernels/cuda/groups_ops.cuh"

namespace edgellm::cuda {
namespace {

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

}  // namespace

template <class Op>
void multiply(const GroupGemvPlan& plan, const Input& in, const Op& op, const GroupMatrices& m,
              int rows, const Workspace& workspace, cudaStream_t stream) {
  const CodedGroups coded = code_groups(plan.code, in, rows, workspace, stream);
  const auto kernel = plan.code.threads > 0 ? group_gemv_kernel<Op, true, false>
                      : by_fours(in)        ? group_gemv_kernel<Op, true, true>
                                            : group_gemv_kernel<Op, false, true>;
  launch(kernel, plan.launch, stream, in, op, m, coded, rows);
}

template void multiply(const GroupGemvPlan&, const Input&, const QkvOp&, const GroupMatrices&, int,
                       const Workspace&, cudaStream_t);
template void multiply(const GroupGemvPlan&, const Input&, const ProjectOp&, const GroupMatrices&,
                       int, const Workspace&, cudaStream_t);
template void multiply(const GroupGemvPlan&, const Input&, const FfnUpOp&, const GroupMatrices&,
                       int, const Workspace&, cudaStream_t);
template void multiply(const GroupGemvPlan&, const Input&, const LogitsOp&, const GroupMatrices&,
                       int, const Workspace&, cudaStream_t);

}  // namespace edgellm::cuda
