// The full head: the final norm, then all logits and their arg-max.
#include <utility>

#include "kernels/cuda/device/arg_max.cuh"
#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/warp_logit.cuh"
#include "kernels/cuda/device/widen.cuh"
#include "kernels/cuda/head_kernels.h"

namespace edgellm::cuda {
namespace {

// Block i: row i.
__global__ void norm_kernel(HeadArgs args) {
  const size_t row = blockIdx.x;
  const size_t dim = static_cast<size_t>(args.w.cols);
  let_next_start();
  wait_for_previous();
  norm_row(args.x + static_cast<size_t>(args.row_list[row]) * dim, args.gain, args.eps, args.w.cols,
           args.normed + row * dim);
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

// Writes a logit; returns its key, or 0 where the arg-max may not choose it.
__device__ inline uint64_t finish_logit(const HeadArgs& args, int row, int v, float logit) {
  args.logits[static_cast<size_t>(row) * static_cast<size_t>(args.w.rows) +
              static_cast<size_t>(v)] = logit;
  if (!isfinite(logit)) set_fault(args.fault, args.layers + 1);
  return allowed_key(args, v, logit);
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
  if (best != 0) {
    atomicMax(reinterpret_cast<unsigned long long*>(&block_best),
              static_cast<unsigned long long>(best));
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicMax(workspace.best + item.row, static_cast<unsigned long long>(block_best));
  }
  end_of_best(args, workspace, static_cast<int>(gridDim.x * gridDim.y));
}

// ---- Several rows of states ---------------------------------------------------------------------

// The states of a block's tokens in shared memory: for each token and 256 columns two arrays of a
// float4 for each lane, which has its column pairs 0, 1 and then 2, 3 there.
struct StateRows {
  const float4* rows;  // of the warp's first token
  int parts;           // of 256 columns

  __device__ float4 pairs(int token, int part, int half, int lane) const {
    return rows[((token * parts + part) * 2 + half) * 32 + lane];
  }
  // Where column c of a token stands, in floats.
  __device__ static int index_of(int token, int parts, int c) {
    const int pair = c % kPartials / 2;
    const int k = pair / 32;
    return (((token * parts + c / kPartials) * 2 + k / 2) * 32 + pair % 32) * 4 + k % 2 * 2 + c % 2;
  }
};

// Rows of the head on their way through shared memory, 256 columns of them a stage: part after part
// of the block's tiles of kRows rows.
template <int kRows>
class HeadStream {
 public:
  static constexpr int kRowWords = kPartials / 2;  // of a stage
  static constexpr int kWords = kRows * kRowWords;

  __device__ HeadStream(const DenseMatrix& w, uint32_t* stages, int first_tile, int tile_stride)
      : stages_(stages),
        parts_(divide_up(w.cols, kPartials)),
        row_stride_(tile_stride * kRows),
        parts_left_(parts_) {
    const auto width = static_cast<ptrdiff_t>(w.cols);
    const int row = first_tile * kRows + static_cast<int>(threadIdx.x) / kPieces;
    const int piece = static_cast<int>(threadIdx.x) % kPieces * 8;
    rows_left_ = w.rows - row;
    columns_left_ = w.cols - piece;
    from_ = static_cast<const uint16_t*>(w.data) + row * width + piece;
    step_ = kAtOnce * width;
    next_tile_ = row_stride_ * width - parts_ * kPartials;
  }

  // Fetches the next stage. What does not exist is zero.
  __device__ __forceinline__ void fetch() {
    uint32_t* to = stages_ + to_ + threadIdx.x * 4;
#pragma unroll
    for (int i = 0; i < divide_up(kRows, kAtOnce); ++i) {
      if (kRows < kAtOnce && static_cast<int>(threadIdx.x) >= kRows * kPieces) break;
      copy_async_or_zero(to + i * kAtOnce * kRowWords, from_ + i * step_,
                         columns_left_ > 0 && rows_left_ > i * kAtOnce);
    }
    end_of_copies();
    to_ = next(to_);
    from_ += kPartials;
    columns_left_ -= kPartials;
    if (--parts_left_ > 0) return;
    parts_left_ = parts_;
    from_ += next_tile_;
    columns_left_ += parts_ * kPartials;
    rows_left_ -= row_stride_;
  }

  // The oldest stage that was not taken yet.
  __device__ __forceinline__ const uint32_t* take() {
    const uint32_t* stage = stages_ + taken_;
    taken_ = next(taken_);
    return stage;
  }

 private:
  static constexpr int kPieces = kRowWords / 4;       // of 16 bytes, of a row
  static constexpr int kAtOnce = kThreads / kPieces;  // rows

  __device__ static int next(int stage) {
    return stage == (kLogitStages - 1) * kWords ? 0 : stage + kWords;
  }

  uint32_t* stages_;  // [kLogitStages, kRows, kRowWords]
  int parts_;
  int row_stride_;
  // Of this thread's first piece of the next stage.
  int parts_left_;  // of the tile
  int rows_left_;   // of the head
  int columns_left_;
  const uint16_t* from_;
  ptrdiff_t step_;       // to the thread's next piece
  ptrdiff_t next_tile_;  // from behind a tile's last stage to the next tile
  int to_ = 0;           // words
  int taken_ = 0;
};

// 128 columns of a warp's rows and tokens: a half of 256.
template <DenseType kType>
struct LogitOperands {
  uint32_t pairs[kWarpRows][2];
  float4 states[kLogitTokens];

  // `rows`: the warp's in the stage.
  __device__ __forceinline__ void load(const uint32_t* rows, const StateRows& from, int part,
                                       int half, int lane) {
#pragma unroll
    for (int t = 0; t < kLogitTokens; ++t) states[t] = from.pairs(t, part, half, lane);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      pairs[r][0] = rows[r * (kPartials / 2) + half * 64 + lane];
      pairs[r][1] = rows[r * (kPartials / 2) + half * 64 + 32 + lane];
    }
  }

  __device__ __forceinline__ void add(
      int half, float2 (&partial)[kLogitTokens][kWarpRows][kColumnPairs]) const {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const float2 first = widen_pair<kType>(pairs[r][0]);
      const float2 second = widen_pair<kType>(pairs[r][1]);
#pragma unroll
      for (int t = 0; t < kLogitTokens; ++t) {
        float2& a = partial[t][r][2 * half];
        float2& b = partial[t][r][2 * half + 1];
        a.x = fmaf(first.x, states[t].x, a.x);
        a.y = fmaf(first.y, states[t].y, a.y);
        b.x = fmaf(second.x, states[t].z, b.x);
        b.y = fmaf(second.y, states[t].w, b.y);
      }
    }
  }
};

// Block (i, j): tokens from i * kTokens on with part j of the head's rows. A warp has kLogitTokens
// of the tokens; those with the same tokens share the rows of a tile out.
template <DenseType kType, int kTokenWarps>
__global__ void __launch_bounds__(kThreads, 1)
    token_logits_kernel(HeadArgs args, Workspace workspace) {
  constexpr int kTokens = kTokenWarps * kLogitTokens;
  constexpr int kTileRows = kWarps / kTokenWarps * kWarpRows;
  using Stream = HeadStream<kTileRows>;
  extern __shared__ float4 memory[];
  __shared__ unsigned long long block_best[kTokens];
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const int dim = args.w.cols;
  const int parts = divide_up(dim, kPartials);
  const int first_token = static_cast<int>(blockIdx.x) * kTokens;
  const int warp_token = warp % kTokenWarps * kLogitTokens;
  const int warp_row = warp / kTokenWarps * kWarpRows;
  const int first_tile = static_cast<int>(blockIdx.y);
  const int tile_stride = static_cast<int>(gridDim.y);
  Stream stream(args.w, reinterpret_cast<uint32_t*>(memory), first_tile, tile_stride);
  float* y = reinterpret_cast<float*>(memory) + kLogitStages * Stream::kWords;
  let_next_start();
#pragma unroll
  for (int n = 0; n < kLogitStages - 1; ++n) stream.fetch();
  wait_for_previous();
  for (int i = t; i < kTokens * parts * kPartials; i += kThreads) {
    const int token = i / (parts * kPartials);
    const int c = i % (parts * kPartials);
    const bool exists = c < dim && first_token + token < args.rows;
    y[StateRows::index_of(token, parts, c)] =
        exists ? args.normed[static_cast<size_t>(first_token + token) * static_cast<size_t>(dim) +
                             static_cast<size_t>(c)]
               : 0.0f;
  }
  if (t < kTokens) block_best[t] = 0;

  const StateRows states{reinterpret_cast<const float4*>(y) + warp_token * parts * 64, parts};
  // After the sums are folded this lane has a row's logit, and keeps that of one token.
  const int my_row = warp_row + LogitTile<kType>::row_of(lane);
  const int my_token = lane % (32 / kWarpRows);
  const int token = first_token + warp_token + my_token;
  const bool keeps = my_token < kLogitTokens && token < args.rows;
  uint64_t best = 0;
  // The next stage, when it has arrived for every thread, the first time with the states. Every
  // warp is done with the stage before the present one, which is filled next.
  const auto next_stage = [&] {
    wait_for_copies_but<kLogitStages - 3>();
    __syncthreads();
    stream.fetch();
    return stream.take() + warp_row * Stream::kRowWords;
  };
  // One half of a part is loaded while the products of the other one are made.
  LogitOperands<kType> low;
  const uint32_t* rows = next_stage();
  low.load(rows, states, 0, 0, lane);
  const int whole_parts = parts - ((dim - 1) % kPartials < kPartials / 2 ? 1 : 0);
  for (int tile = first_tile; tile * kTileRows < args.w.rows; tile += tile_stride) {
    float2 partial[kLogitTokens][kWarpRows][kColumnPairs] = {};
    // Without a branch, so that loads and products mix.
    for (int part = 0; part < whole_parts; ++part) {
      LogitOperands<kType> high;
      high.load(rows, states, part, 1, lane);
      low.add(0, partial);
      rows = next_stage();
      low.load(rows, states, part + 1 < parts ? part + 1 : 0, 0, lane);
      high.add(1, partial);
    }
    if (whole_parts < parts) {
      low.add(0, partial);
      rows = next_stage();
      low.load(rows, states, 0, 0, lane);
    }
    float logit = 0.0f;
#pragma unroll
    for (int i = 0; i < kLogitTokens; ++i) {
      const float folded = LogitTile<kType>::fold(partial[i], lane);
      if (my_token == i) logit = folded;
    }
    const int v = tile * kTileRows + my_row;
    if (keeps && v < args.w.rows) best = max(best, finish_logit(args, token, v, logit));
  }
  wait_for_copies();
  if (args.argmax == nullptr) return;
  if (keeps && best != 0) {
    atomicMax(block_best + warp_token + my_token, static_cast<unsigned long long>(best));
  }
  __syncthreads();
  if (t < kTokens && first_token + t < args.rows) {
    atomicMax(workspace.best + first_token + t, block_best[t]);
  }
  end_of_best(args, workspace, static_cast<int>(gridDim.x * gridDim.y));
}

template <DenseType kType, int... kWarpCounts>
void launch_token_logits(const LogitsPlan& plan, const HeadArgs& args, const Workspace& workspace,
                         cudaStream_t stream, std::integer_sequence<int, kWarpCounts...>) {
  const auto launch_if = [&](bool is_instance, auto kernel) {
    if (is_instance) launch(kernel, plan.launch, stream, args, workspace);
    return is_instance;
  };
  require_instance(
      (launch_if(plan.token_warps == kWarpCounts, token_logits_kernel<kType, kWarpCounts>) || ...));
}

template <DenseType kType>
void launch_logits_of(const LogitsPlan& plan, const HeadArgs& args, const Workspace& workspace,
                      cudaStream_t stream) {
  if constexpr (kType != DenseType::kF32) {
    if (plan.token_warps > 0) {
      return launch_token_logits<kType>(plan, args, workspace, stream,
                                        std::integer_sequence<int, 1, 2, 4, 8>());
    }
    if (plan.tiled) {
      return launch(logits_kernel<kType, true>, plan.launch, stream, args, workspace);
    }
  }
  launch(logits_kernel<kType, false>, plan.launch, stream, args, workspace);
}

}  // namespace

void launch_norm(const LogitsPlan& plan, const HeadArgs& args, cudaStream_t stream) {
  launch(norm_kernel, plan.norm, stream, args);
}

void launch_logits(const LogitsPlan& plan, const HeadArgs& args, const Workspace& workspace,
                   cudaStream_t stream) {
  if (plan.whole_rows) return launch_logit_tiles(plan, args, workspace, stream);
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
