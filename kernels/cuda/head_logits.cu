// The full head: the final norm, then all logits and their arg-max.
#include <cuda_fp16.h>

#include "kernels/certified_head.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/head_kernels.h"

namespace edgellm::cuda {
namespace {

__device__ __forceinline__ void norm_row(const HeadArgs& args, int row) {
  __shared__ float partials[kPartials];
  const int t = static_cast<int>(threadIdx.x);
  const int dim = args.w.cols;
  let_next_start();
  wait_for_previous();
  const float* x = args.x + static_cast<size_t>(args.row_list[row]) * static_cast<size_t>(dim);
  float partial = 0.0f;
  for (int i = t; i < dim; i += kThreads) partial = fmaf(x[i], x[i], partial);
  partials[t] = partial;
  __syncthreads();
  const float r = rms_factor(fold_partials(partials), dim, args.eps);
  float* normed = args.normed + static_cast<size_t>(row) * static_cast<size_t>(dim);
  for (int i = t; i < dim; i += kThreads) normed[i] = args.gain[i] * (x[i] * r);
}

// Block i: row i.
__global__ void norm_kernel(HeadArgs args) {
  const int row = static_cast<int>(blockIdx.x);
  norm_row(args, row);
}

// Two 16-bit values of a matrix row, the lower one first.
template <DenseType kType>
__device__ inline float2 widen_pair(uint32_t pair) {
  if constexpr (kType == DenseType::kBF16) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
}

// ---- Logits -------------------------------------------------------------------------------------

// Rows of the head that a warp takes at once. Their 256 partial sums each fold together: a lane
// keeps one row's share and sends away the others', so that the shuffles are few.
constexpr int kWarpRows = kLogitRows;

// Pairs of columns of a row that a lane loads at once: the partial sums 2 l, 2 l + 1, and those 64,
// 128, 192 further on.
constexpr int kColumnPairs = 4;

// Four neighbouring 16-bit rows with an even number of columns, 256 columns of them at a time.
template <DenseType kType>
struct LogitTile {
  uint32_t pairs[kWarpRows][kColumnPairs];

  // Columns first .. first + 255 of rows v .. v + 3.
  __device__ void load(const DenseMatrix& w, int v, int first, int lane) {
    const int half = w.cols / 2;
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const uint32_t* from = static_cast<const uint32_t*>(w.data) +
                             static_cast<size_t>(v + r) * static_cast<size_t>(half);
#pragma unroll
      for (int k = 0; k < kColumnPairs; ++k) {
        const int pair = first / 2 + 32 * k + lane;
        pairs[r][k] = pair < half && v + r < w.rows ? __ldg(from + pair) : 0u;
      }
    }
  }

  // `y`: [columns / 2 rounded up to a multiple of 128] pairs, filled with zeros.
  __device__ void add(const float2* y, int first, int lane,
                      float2 (&partial)[kWarpRows][kColumnPairs]) const {
#pragma unroll
    for (int k = 0; k < kColumnPairs; ++k) {
      const float2 activation = y[first / 2 + 32 * k + lane];
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) {
        const float2 weight = widen_pair<kType>(pairs[r][k]);
        partial[r][k].x = fmaf(weight.x, activation.x, partial[r][k].x);
        partial[r][k].y = fmaf(weight.y, activation.y, partial[r][k].y);
      }
    }
  }

  // The row whose logit fold() leaves in a lane.
  __device__ static int row_of(int lane) { return lane / (32 / kWarpRows); }
  __device__ static float fold(const float2 (&partial)[kWarpRows][kColumnPairs], int lane) {
    // Widths 128 and 64 within the lane.
    float values[2 * kWarpRows];
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const float2* p = partial[r];
      values[2 * r] = (p[0].x + p[2].x) + (p[1].x + p[3].x);
      values[2 * r + 1] = (p[0].y + p[2].y) + (p[1].y + p[3].y);
    }
    // Widths 32, 16, 8, 4, 2: lanes 16, 8, 4, 2, 1 away. The first steps halve the rows, the next
    // one keeps the even or the odd partial sums.
    int left = 2 * kWarpRows;
#pragma unroll
    for (int width = 16; width >= 1; width /= 2) {
      if (left > 1) {
        left /= 2;
        const bool upper = (lane & width) != 0;
#pragma unroll
        for (int i = 0; i < kWarpRows; ++i) {
          if (i >= left) continue;
          const float keep = upper ? values[i + left] : values[i];
          const float give = upper ? values[i] : values[i + left];
          values[i] = keep + __shfl_xor_sync(kAllLanes, give, width);
        }
      } else {
        values[0] += __shfl_xor_sync(kAllLanes, values[0], width);
      }
    }
    // Width 1: even and odd.
    values[0] += __shfl_xor_sync(kAllLanes, values[0], 16 / kWarpRows);
    return values[0] + 0.0f;
  }
};

// Any row, by one warp; every lane returns its logit. Lane l holds partial sums l, l + 32, ...
template <DenseType kType>
__device__ float any_logit(const DenseMatrix& w, int v, const float* y, int lane) {
  const size_t base = static_cast<size_t>(v) * static_cast<size_t>(w.cols);
  float p[8] = {};
  for (int begin = 0; begin < w.cols; begin += kPartials) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int c = begin + 32 * k + lane;
      if (c < w.cols) {
        p[k] = fmaf(widen(w.data, kType, base + static_cast<size_t>(c)), y[c], p[k]);
      }
    }
  }
  return fold_warp(((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))) + 0.0f;
}

// Writes a logit; returns its key, or 0 where the arg-max may not choose it.
__device__ inline uint64_t finish_logit(const HeadArgs& args, int row, int v, float logit) {
  args.logits[static_cast<size_t>(row) * static_cast<size_t>(args.w.rows) +
              static_cast<size_t>(v)] = logit;
  if (!isfinite(logit)) set_fault(args.fault, args.layers + 1);
  for (int b = 0; b < args.n_banned; ++b) {
    if (args.banned[b] == v) return 0;
  }
  return logit_key(logit, v);
}

// The work of a block: row `row` of the states with part `part` of `parts` of the head's rows.
struct LogitsItem {
  int row, part, parts;
};

// Writes the item's logits and returns the best key that the thread has seen. `y` holds the normed
// row, its columns rounded up to a multiple of 256; *block_best becomes 0. kTiled: 16-bit rows with
// an even number of columns.
template <DenseType kType, bool kTiled>
__device__ __forceinline__ uint64_t write_logits(const HeadArgs& args, const LogitsItem& item,
                                                 float* y, uint64_t* block_best) {
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const int row = item.row;
  const int dim = args.w.cols;
  constexpr int kRows = kTiled ? kWarpRows : 1;
  const int stride = item.parts * kWarps * kRows;
  int v = (item.part * kWarps + warp) * kRows;
  let_next_start();

  // Fetch the first weights while the norm is still being made.
  LogitTile<kTiled ? kType : DenseType::kBF16> tile;
  if constexpr (kTiled) tile.load(args.w, v, 0, lane);
  wait_for_previous();
  const float* normed = args.normed + static_cast<size_t>(row) * static_cast<size_t>(dim);
  for (int i = t; i < (dim + kPartials - 1) / kPartials * kPartials; i += kThreads) {
    y[i] = i < dim ? normed[i] : 0.0f;
  }
  if (t == 0) *block_best = 0;
  __syncthreads();

  uint64_t best = 0;
  for (; v < args.w.rows; v += stride) {
    if constexpr (kTiled) {
      float2 partial[kWarpRows][kColumnPairs] = {};
      for (int first = 0; first < dim; first += kPartials) {
        tile.add(reinterpret_cast<const float2*>(y), first, lane, partial);
        // The next part, of these rows or the next ones, loads during the rest of the work.
        const bool more = first + kPartials < dim;
        tile.load(args.w, more ? v : v + stride, more ? first + kPartials : 0, lane);
      }
      const float logit = tile.fold(partial, lane);
      const int mine = v + tile.row_of(lane);
      if (lane % (32 / kWarpRows) == 0 && mine < args.w.rows) {
        best = max(best, finish_logit(args, row, mine, logit));
      }
    } else {
      const float logit = any_logit<kType>(args.w, v, y, lane);
      if (lane == 0) best = max(best, finish_logit(args, row, v, logit));
    }
  }
  return best;
}

// Merges the best keys of a block's threads into `workspace.best`. The last of `items` blocks turns
// the keys of all rows into ids.
__device__ __forceinline__ void merge_best(const HeadArgs& args, const Workspace& workspace,
                                           int row, int items, uint64_t best,
                                           uint64_t* block_best) {
  __shared__ bool last;
  const int t = static_cast<int>(threadIdx.x);
  if (best != 0) {
    atomicMax(reinterpret_cast<unsigned long long*>(block_best),
              static_cast<unsigned long long>(best));
  }
  __syncthreads();
  if (t == 0) {
    atomicMax(workspace.best + row, static_cast<unsigned long long>(*block_best));
    // The maximum is in before the block counts itself done.
    __threadfence();
    last = atomicAdd(workspace.head_done, 1) == items - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int r = t; r < args.rows; r += kThreads) {
    args.argmax[r] = id_of_key(atomicExch(workspace.best + r, 0ull));
  }
  if (t == 0) *workspace.head_done = 0;
}

// Block (i, j): part i of the head's rows, row j.
template <DenseType kType, bool kTiled>
__global__ void __launch_bounds__(kThreads, 3) logits_kernel(HeadArgs args, Workspace workspace) {
  extern __shared__ float4 y[];
  __shared__ uint64_t block_best;
  const LogitsItem item{static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x),
                        static_cast<int>(gridDim.x)};
  const uint64_t best =
      write_logits<kType, kTiled>(args, item, reinterpret_cast<float*>(y), &block_best);
  if (args.argmax == nullptr) return;
  merge_best(args, workspace, item.row, static_cast<int>(gridDim.x * gridDim.y), best, &block_best);
}

template <DenseType kType>
void launch_logits_of(const LogitsPlan& plan, const HeadArgs& args, const Workspace& workspace,
                      cudaStream_t stream) {
  constexpr bool kCanTile = kType != DenseType::kF32;
  launch(plan.tiled ? logits_kernel<kType, kCanTile> : logits_kernel<kType, false>, plan.launch,
         stream, args, workspace);
}

}  // namespace

void launch_norm(const LogitsPlan& plan, const HeadArgs& args, cudaStream_t stream) {
  launch(norm_kernel, plan.norm, stream, args);
}

void launch_logits(const LogitsPlan& plan, const HeadArgs& args, const Workspace& workspace,
                   cudaStream_t stream) {
  switch (args.w.type) {
    case DenseType::kF32:
      return launch_logits_of<DenseType::kF32>(plan, args, workspace, stream);
    case DenseType::kF16:
      return launch_logits_of<DenseType::kF16>(plan, args, workspace, stream);
    case DenseType::kBF16:
      return launch_logits_of<DenseType::kBF16>(plan, args, workspace, stream);
  }
}

}  // namespace edgellm::cuda
