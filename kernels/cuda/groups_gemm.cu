// Ternary products of many rows in groups: tiles whose warps go through the groups in order.
#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/ternary_dot.cuh"
#include "kernels/cuda/device/ternary_tile.cuh"
#include "kernels/cuda/groups_ops.cuh"

namespace edgellm::cuda {
namespace {

// A block makes a tile of kGroupGemmPairs pairs with kGroupGemmTokens tokens, a group at a time: a
// stage. Each of its warps, four along the pairs and two along the tokens, has two tiles of eight
// pairs with eight tiles of four tokens, whose rows and columns are those of multiply_groups()
// (groups_gemv.cu).
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

}  // namespace

template <class Op>
void multiply(const GroupGemmPlan& plan, const Input& in, const Op& op, const GroupMatrices& m,
              int rows, const Workspace& workspace, cudaStream_t stream) {
  const CodedGroups coded = code_groups(plan.code, in, rows, workspace, stream);
  launch(group_gemm_kernel<Op>, plan.launch, stream, op, m, coded, rows);
}

template void multiply(const GroupGemmPlan&, const Input&, const QkvOp&, const GroupMatrices&, int,
                       const Workspace&, cudaStream_t);
template void multiply(const GroupGemmPlan&, const Input&, const ProjectOp&, const GroupMatrices&,
                       int, const Workspace&, cudaStream_t);
template void multiply(const GroupGemmPlan&, const Input&, const FfnUpOp&, const GroupMatrices&,
                       int, const Workspace&, cudaStream_t);
template void multiply(const GroupGemmPlan&, const Input&, const LogitsOp&, const GroupMatrices&,
                       int, const Workspace&, cudaStream_t);

}  // namespace edgellm::cuda
