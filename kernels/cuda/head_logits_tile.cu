// Logits of many rows of states ("tokens") by a head whose rows are short: tiles of head rows x
// tokens that lie in shared memory with all their columns.
//
// canonical_sum has 256 partial sums, and a short row gives each of them only two or three terms.
// Where lanes share the partial sums of a logit out (head_logits.cu), adding them up takes half of
// the time. Here a thread makes whole logits: it visits the partial sums in the order in which they
// are added up, depth first, and keeps at most one sum of each level of that tree.
#include "kernels/cuda/device/arg_max.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/widen.cuh"
#include "kernels/cuda/head_kernels.h"

namespace edgellm::cuda {
namespace {

// Of a thread; a warp's lanes are 4 by 8 of those.
constexpr int kOwnRows = 2;
constexpr int kOwnTokens = 4;
static_assert(kLogitTileRows == 64 && kLogitTileTokens == 64);
static_assert(kLogitTileThreads * kOwnRows * kOwnTokens == kLogitTileRows * kLogitTileTokens);

struct LogitSums {
  float of[kOwnRows][kOwnTokens];
};

__device__ __forceinline__ LogitSums sum_of(const LogitSums& a, const LogitSums& b) {
  LogitSums sum;
#pragma unroll
  for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
    for (int t = 0; t < kOwnTokens; ++t) sum.of[r][t] = a.of[r][t] + b.of[r][t];
  }
  return sum;
}

// What a thread reads: columns c of its rows and tokens, for every c. kWhole: whole rounds of
// kPartials columns of a row.
template <DenseType kType, int kWhole>
struct ThreadTile {
  const uint16_t* weights;  // [columns][kLogitTileRows], from the thread's rows on
  const float* states;      // [columns][kLogitTileTokens], from the thread's tokens on
  int columns;

  // Adds the terms of column c.
  __device__ __forceinline__ void add(LogitSums& sums, int c) const {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(weights + c * kLogitTileRows);
    const float4 y = *reinterpret_cast<const float4*>(states + c * kLogitTileTokens);
    const float2 both = widen_pair<kType>(pair);
    const float weight[kOwnRows] = {both.x, both.y};
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      sums.of[r][0] = fmaf(weight[r], y.x, sums.of[r][0]);
      sums.of[r][1] = fmaf(weight[r], y.y, sums.of[r][1]);
      sums.of[r][2] = fmaf(weight[r], y.z, sums.of[r][2]);
      sums.of[r][3] = fmaf(weight[r], y.w, sums.of[r][3]);
    }
  }

  // Partial sum i.
  __device__ __forceinline__ LogitSums partial(int i) const {
    LogitSums sums = {};
#pragma unroll
    for (int round = 0; round < kWhole; ++round) add(sums, i + round * kPartials);
    if (i + kWhole * kPartials < columns) add(sums, i + kWhole * kPartials);
    return sums;
  }

  // What partial sums i + 256 n / 2^kLevels, for every n, add up to.
  template <int kLevels>
  __device__ __forceinline__ LogitSums subtree(int i) const {
    if constexpr (kLevels == 0) {
      return partial(i);
    } else {
      const LogitSums lower = subtree<kLevels - 1>(i);
      return sum_of(lower, subtree<kLevels - 1>(i + (kPartials >> kLevels)));
    }
  }

  // The logits. The lower half of the tree is unrolled.
  __device__ __forceinline__ LogitSums logits() const {
    constexpr int kUnrolled = 4;
    constexpr int kLoops = 4;  // levels above it
    static_assert(kPartials == 1 << (kUnrolled + kLoops));
    // Of each level, the lower half of what is to be added up.
    LogitSums waiting0, waiting1, waiting2, waiting3;
    LogitSums sums;
#pragma unroll 1
    for (uint32_t n = 0;; ++n) {
      sums = subtree<kUnrolled>(static_cast<int>(__brev(n) >> (32 - kLoops)));
      if ((n & 1) == 0) {
        waiting0 = sums;
        continue;
      }
      sums = sum_of(waiting0, sums);
      if ((n & 2) == 0) {
        waiting1 = sums;
        continue;
      }
      sums = sum_of(waiting1, sums);
      if ((n & 4) == 0) {
        waiting2 = sums;
        continue;
      }
      sums = sum_of(waiting2, sums);
      if ((n & 8) != 0) break;
      waiting3 = sums;
    }
    return sum_of(waiting3, sums);
  }
};

// The tile's head rows from `first` on into shared memory, columns first; those that do not exist
// are the last one's.
__device__ __forceinline__ void load_weights(const DenseMatrix& w, int first, uint16_t* to) {
  constexpr int kPieceRows = kLogitTileRows;
  constexpr int kPieces = kLogitTileThreads / kPieceRows;  // of eight columns, at once
  constexpr int kAhead = 5;
  const int row = static_cast<int>(threadIdx.x) % kPieceRows;
  const uint4* from = reinterpret_cast<const uint4*>(
      static_cast<const uint16_t*>(w.data) +
      static_cast<size_t>(min(first + row, w.rows - 1)) * static_cast<size_t>(w.cols));
  const int pieces = w.cols / 8;
  for (int begin = static_cast<int>(threadIdx.x) / kPieceRows; begin < pieces;
       begin += kPieces * kAhead) {
    uint4 piece[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) piece[i] = __ldg(from + min(begin + i * kPieces, pieces - 1));
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = begin + i * kPieces;
      if (at >= pieces) break;
      const uint32_t words[4] = {piece[i].x, piece[i].y, piece[i].z, piece[i].w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        to[(8 * at + e) * kLogitTileRows + row] =
            static_cast<uint16_t>(words[e / 2] >> 16 * (e % 2));
      }
    }
  }
}

// The normed rows of the tile's tokens, columns first; zeros for those that do not exist.
__device__ __forceinline__ void load_states(const HeadArgs& args, int first, float* to) {
  const int cols = args.w.cols;
  const int token = static_cast<int>(threadIdx.x) % kLogitTileTokens;
  const bool exists = first + token < args.rows;
  const float4* from = reinterpret_cast<const float4*>(
      args.normed + static_cast<size_t>(exists ? first + token : 0) * static_cast<size_t>(cols));
  constexpr int kStep = kLogitTileThreads / kLogitTileTokens;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) / kLogitTileTokens; i < cols / 4; i += kStep) {
    const float4 y = exists ? from[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float* column = to + 4 * i * kLogitTileTokens + token;
    column[0] = y.x;
    column[kLogitTileTokens] = y.y;
    column[2 * kLogitTileTokens] = y.z;
    column[3 * kLogitTileTokens] = y.w;
  }
}

// Writes a thread's logits of tokens before `end`, and puts their keys into `best` [tokens of the
// tile] where the arg-max is wanted.
__device__ __forceinline__ void store_logits(const HeadArgs& args, int row, int first_token,
                                             int token, const LogitSums& sums,
                                             unsigned long long* best) {
  const int vocab = args.w.rows;
#pragma unroll
  for (int t = 0; t < kOwnTokens; ++t) {
    if (first_token + token + t >= args.rows || row >= vocab) break;
    float logit[kOwnRows];
    bool finite = true;
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      logit[r] = sums.of[r][t] + 0.0f;
      finite = finite && (isfinite(logit[r]) || row + r >= vocab);
    }
    if (!finite) set_fault(args.fault, args.layers + 1);
    float* to = args.logits +
                static_cast<size_t>(first_token + token + t) * static_cast<size_t>(vocab) +
                static_cast<size_t>(row);
    if (vocab % kOwnRows == 0) {
      *reinterpret_cast<float2*>(to) = make_float2(logit[0], logit[1]);
    } else {
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) {
        if (row + r < vocab) to[r] = logit[r];
      }
    }
    if (args.argmax == nullptr) continue;
#pragma unroll 1
    for (int r = 0; r < kOwnRows && row + r < vocab; ++r) {
      atomicMax(best + token + t,
                static_cast<unsigned long long>(allowed_key(args, row + r, logit[r])));
    }
  }
}

// Block (i, j): tile i of the tokens, tiles j, j + gridDim.y, ... of the head's rows.
template <DenseType kType, int kWhole>
__global__ void __launch_bounds__(kLogitTileThreads, 1)
    tile_logits_kernel(HeadArgs args, Workspace workspace) {
  extern __shared__ float4 memory[];
  __shared__ unsigned long long best[kLogitTileTokens];
  const int t = static_cast<int>(threadIdx.x);
  const int cols = args.w.cols;
  const int first_token = static_cast<int>(blockIdx.x) * kLogitTileTokens;
  float* states = reinterpret_cast<float*>(memory);
  auto* weights = reinterpret_cast<uint16_t*>(states + cols * kLogitTileTokens);
  const int row = (t / 8 % 4 + t / 64 * 4) * kOwnRows;
  const int token = (t % 8 + t / 32 % 2 * 8) * kOwnTokens;
  const ThreadTile<kType, kWhole> tile{weights + row, states + token, cols};
  let_next_start();
  load_weights(args.w, static_cast<int>(blockIdx.y) * kLogitTileRows, weights);
  wait_for_previous();
  load_states(args, first_token, states);
  if (t < kLogitTileTokens) best[t] = 0;
  for (int first = static_cast<int>(blockIdx.y) * kLogitTileRows;;) {
    __syncthreads();
    const LogitSums sums = tile.logits();
    store_logits(args, first + row, first_token, token, sums, best);
    first += static_cast<int>(gridDim.y) * kLogitTileRows;
    if (first >= args.w.rows) break;
    __syncthreads();
    load_weights(args.w, first, weights);
  }
  if (args.argmax == nullptr) return;
  __syncthreads();
  if (t < kLogitTileTokens && first_token + t < args.rows) {
    atomicMax(workspace.best + first_token + t, best[t]);
  }
  end_of_best(args, workspace, static_cast<int>(gridDim.x * gridDim.y));
}

template <DenseType kType>
void launch_tiles(const LogitsPlan& plan, const HeadArgs& args, const Workspace& workspace,
                  cudaStream_t stream) {
  const auto launch_if = [&](int whole, auto kernel) {
    if (args.w.cols / kPartials != whole) return false;
    launch(kernel, plan.launch, stream, args, workspace);
    return true;
  };
  static_assert(kMaxLogitTileColumns < 3 * kPartials);
  require_instance(launch_if(0, tile_logits_kernel<kType, 0>) ||
                   launch_if(1, tile_logits_kernel<kType, 1>) ||
                   launch_if(2, tile_logits_kernel<kType, 2>));
}

}  // namespace

void launch_logit_tiles(const LogitsPlan& plan, const HeadArgs& args, const Workspace& workspace,
                        cudaStream_t stream) {
  require(args.w.type != DenseType::kF32, "tiles of logits are of 16-bit heads");
  if (args.w.type == DenseType::kF16) {
    launch_tiles<DenseType::kF16>(plan, args, workspace, stream);
  } else {
    launch_tiles<DenseType::kBF16>(plan, args, workspace, stream);
  }
}

}  // namespace edgellm::cuda
