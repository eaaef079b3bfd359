// Ternary products of rows in groups: tiles whose warps share the groups of a slab out.
#include <utility>

#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/ternary_dot.cuh"
#include "kernels/cuda/device/ternary_tile.cuh"
#include "kernels/cuda/groups_ops.cuh"

namespace edgellm::cuda {
namespace {

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

}  // namespace

template <class Op>
void multiply(const GroupTilePlan& plan, const Input& in, const Op& op, const GroupMatrices& m,
              int rows, const Workspace& workspace, cudaStream_t stream) {
  const CodedGroups coded = code_groups(plan.code, in, rows, workspace, stream);
  launch_tile(plan, op, m, coded, rows, stream, std::make_index_sequence<kNumGroupTiles>());
}

template void multiply(const GroupTilePlan&, const Input&, const QkvOp&, const GroupMatrices&, int,
                       const Workspace&, cudaStream_t);
template void multiply(const GroupTilePlan&, const Input&, const ProjectOp&, const GroupMatrices&,
                       int, const Workspace&, cudaStream_t);
template void multiply(const GroupTilePlan&, const Input&, const FfnUpOp&, const GroupMatrices&,
                       int, const Workspace&, cudaStream_t);
template void multiply(const GroupTilePlan&, const Input&, const LogitsOp&, const GroupMatrices&,
                       int, const Workspace&, cudaStream_t);

}  // namespace edgellm::cuda
