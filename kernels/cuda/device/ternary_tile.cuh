// A tile of ternary weight rows x activation rows ("tokens") on the int8 tensor cores.
#pragma once

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/plan/linear.h"

namespace edgellm::cuda {

// The cut of a block's tile (TernaryCut) as constants.
template <int kRowTiles_, int kTokenTiles_, int kWarpsM_, int kWarpsN_, int kWarpsK_, int kSteps_,
          int kStages_>
struct TernaryTiling {
  static constexpr TernaryCut kCut{kRowTiles_, kTokenTiles_, kWarpsM_, kWarpsN_,
                                   kWarpsK_,   kSteps_,      kStages_};
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kTokenTiles = kTokenTiles_;
  static constexpr int kWarpsM = kWarpsM_;
  static constexpr int kWarpsK = kWarpsK_;
  static constexpr int kSteps = kSteps_;
  static constexpr int kStages = kStages_;

  static constexpr int kThreads = kCut.threads();
  static constexpr int kRows = kCut.rows();
  static constexpr int kPairs = kCut.pairs();
  static constexpr int kTokens = kCut.tokens();
  static constexpr int kWeightPlane = kCut.weight_plane();
  static constexpr int kCodePlane = kCut.code_plane();
  static constexpr int kStageBytes = kCut.stage_bytes();
  static constexpr int kSumStride = kCut.sum_stride();
  static constexpr int kTileBytes = kCut.tile_bytes();

  static_assert(kRowTiles % 2 == 0, "a warp holds both rows of a pair");
  static_assert(kThreads % (4 * kSteps) == 0 && kSteps % kWarpsK == 0);
  static_assert(kThreads % kPairs == 0, "a thread stores results of one pair");
};

// Row of the tile as the op knows it. Tiles of 16 rows come in twos: the first rows of 16 pairs,
// then their second rows.
struct TileRow {
  int pair;
  int which;
  __device__ explicit TileRow(int row) : pair(row / 32 * 16 + row % 16), which(row / 16 % 2) {}
};

// A warp's sums of codes w + 1 times activations are 2^kWeightShift times too large (kMaxColumns
// has room for that). The two bits of a weight stay at the top of a byte, where shifts to the left
// bring them: unlike shifts to the right, those need not share a pipeline with the masks.
constexpr int kWeightShift = 6;
// Exact, also for sums of such sums.
__device__ inline int unscaled(int sum) { return sum >> kWeightShift; }

// A word each of rows g and g + 8 as the rows of two products of 32 columns.
__device__ __forceinline__ void unpack_weights(uint32_t low, uint32_t high, uint32_t (&a)[2][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    a[half][0] = low << (kWeightShift - 4 * half) & 0xc0c0c0c0u;
    a[half][1] = high << (kWeightShift - 4 * half) & 0xc0c0c0c0u;
    a[half][2] = low << (kWeightShift - 2 - 4 * half) & 0xc0c0c0c0u;
    a[half][3] = high << (kWeightShift - 2 - 4 * half) & 0xc0c0c0c0u;
  }
}

template <class T>
struct TernaryTile {
  int sums[T::kRowTiles][T::kTokenTiles][4] = {};

  // One K step of 64 columns. Lane 4 g + t of a warp takes columns 16 t .. 16 t + 15 of rows and
  // tokens g: one word of weights and 16 bytes of activations. mma only asks that both sides name
  // the same columns. `weights`: the warp's first row; `codes`: its first token.
  __device__ void add(const int8_t* weights, const int8_t* codes) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t a[T::kRowTiles][2][4];
#pragma unroll
    for (int m = 0; m < T::kRowTiles; ++m) {
      const uint32_t* words = reinterpret_cast<const uint32_t*>(weights + m * 16 * 16) + lane;
      unpack_weights(words[0], words[32], a[m]);
    }
#pragma unroll
    for (int n = 0; n < T::kTokenTiles; ++n) {
      const uint4 b = reinterpret_cast<const uint4*>(codes + n * 8 * 64)[lane];
#pragma unroll
      for (int m = 0; m < T::kRowTiles; ++m) multiply_tile(sums[m][n], a[m][0], b.x, b.y);
#pragma unroll
      for (int m = 0; m < T::kRowTiles; ++m) multiply_tile(sums[m][n], a[m][1], b.z, b.w);
    }
  }

  // `tile`: [token][row] of the warp's first token and row.
  __device__ void write(int* tile) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4;
    const int t = lane % 4;
#pragma unroll
    for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < T::kTokenTiles; ++n) {
        int* at = tile + (n * 8 + 2 * t) * T::kSumStride + m * 16 + g;
        at[0] = unscaled(sums[m][n][0]);
        at[T::kSumStride] = unscaled(sums[m][n][1]);
        at[8] = unscaled(sums[m][n][2]);
        at[T::kSumStride + 8] = unscaled(sums[m][n][3]);
      }
    }
  }
};

}  // namespace edgellm::cuda
