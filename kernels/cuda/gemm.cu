// qkv, attn_out, ffn_up and ffn_down for many activation rows: GEMM. The rows are "tokens" here,
// because weights have rows as well. One launch quantises the tokens (quantise.cu), a second
// multiplies on the int8 tensor cores and stores the results.
//
// A block makes a tile of weight rows x tokens. Copies of the next K steps into shared memory run
// while the tensor cores work on the present one. The tile's integer sums go through shared memory
// once more, so that the epilogue is a short loop in which neighbouring threads write neighbouring
// results.
#include <iterator>
#include <utility>

#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/ternary_tile.cuh"
#include "kernels/cuda/linear_kernels.cuh"

namespace edgellm::cuda {
namespace {

// ---- The product ----------------------------------------------------------------------------

// This thread's share of the copies into a stage: the same rows and tokens for every stage, one K
// step of each. Rows and tokens that do not exist are zeros: reading others in their place would
// send all blocks to the same lines of the L2 cache.
template <class T>
struct GemmCopies {
  static constexpr int kWeightCopies = (T::kRows * T::kSteps + T::kThreads - 1) / T::kThreads;
  static constexpr int kCodeCopies = (T::kTokens * T::kSteps * 4 + T::kThreads - 1) / T::kThreads;

  const uint4* weights[kWeightCopies];  // at stage 0
  const uint4* codes[kCodeCopies];
  uint32_t has_weights = 0;  // bit i: weights[i] is a row that exists
  uint32_t has_codes = 0;
  int steps;  // of 64 columns, of the whole product

  template <class Op>
  __device__ GemmCopies(const Op& op, const QuantisedRows& rows, int first_pair, int first_token,
                        int tokens)
      : steps(op.row_words / 4) {
    const int t = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const TileRow tile_row((t + i * T::kThreads) / T::kSteps);
      const int number = first_pair + tile_row.pair;
      const PairRows pair = op.rows(min(number, op.pairs() - 1));
      const uint32_t* row = tile_row.which == 1 ? pair.words[1] : pair.words[0];
      if (number < op.pairs() && row != nullptr) has_weights |= 1u << i;
      weights[i] =
          reinterpret_cast<const uint4*>(row != nullptr ? row : pair.words[0]) + t % T::kSteps;
    }
#pragma unroll
    for (int i = 0; i < kCodeCopies; ++i) {
      const int token = first_token + (t + i * T::kThreads) / (4 * T::kSteps);
      if (token < tokens) has_codes |= 1u << i;
      codes[i] = reinterpret_cast<const uint4*>(rows.codes) +
                 static_cast<size_t>(min(token, tokens - 1)) * (rows.row_bytes / 16) +
                 t % (4 * T::kSteps);
    }
  }

  __device__ void fetch_weights(int8_t* stage, int first_step) const {
    const int t = static_cast<int>(threadIdx.x);
    const int step = t % T::kSteps;
    const bool valid = first_step + step < steps;
    int8_t* to = stage + step * T::kWeightPlane + t / T::kSteps * 16;
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      if (T::kRows * T::kSteps % T::kThreads != 0 && t + i * T::kThreads >= T::kRows * T::kSteps) {
        break;
      }
      copy_async_or_zero(to + i * (T::kThreads / T::kSteps * 16),
                         weights[i] + (valid ? first_step : 0),
                         valid && (has_weights >> i & 1) != 0);
    }
  }

  __device__ void fetch_codes(int8_t* stage, int first_step) const {
    const int t = static_cast<int>(threadIdx.x);
    const int quarter = t % (4 * T::kSteps);
    const bool valid = first_step + quarter / 4 < steps;
    int8_t* to = stage + T::kSteps * T::kWeightPlane + quarter / 4 * T::kCodePlane +
                 t / (4 * T::kSteps) * 64 + quarter % 4 * 16;
#pragma unroll
    for (int i = 0; i < kCodeCopies; ++i) {
      if (T::kTokens * T::kSteps * 4 % T::kThreads != 0 &&
          t + i * T::kThreads >= T::kTokens * T::kSteps * 4) {
        break;
      }
      copy_async_or_zero(to + i * (T::kThreads / (4 * T::kSteps) * 64),
                         codes[i] + (valid ? 4 * first_step : 0),
                         valid && (has_codes >> i & 1) != 0);
    }
  }
};

// The results of a tile that a thread stores: of one pair, for every kTokenStep-th token.
template <class T, class Op>
struct TileEpilogue {
  static constexpr int kTokenStep = T::kThreads / T::kPairs;
  static constexpr int kResults = (T::kTokens + kTokenStep - 1) / kTokenStep;
  // Targets are located together, so that the thread waits for memory once. Few are located before
  // the products; more would take their registers.
  static constexpr int kBatch = kResults < 8 ? kResults : 8;
  static constexpr bool kEarly = kResults <= 4;

  int pair;
  int first_token;
  int end;  // of the tile's tokens
  typename Op::Target target[kBatch];

  __device__ TileEpilogue(const Op& op, int first_pair, int first_token_, int tokens)
      : pair(first_pair + static_cast<int>(threadIdx.x) % T::kPairs),
        first_token(first_token_),
        end(min(T::kTokens, tokens - first_token_)) {
    if (kEarly && pair < op.pairs()) locate(op, static_cast<int>(threadIdx.x) / T::kPairs);
  }

  __device__ void locate(const Op& op, int begin) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      target[i] = op.locate(first_token + min(begin + i * kTokenStep, end - 1), pair);
    }
  }

  // Scales the sums and lets the op store them.
  __device__ void store(const Op& op, const int* tile, const RowScale* scales) {
    if (pair >= op.pairs()) return;
    const int t = static_cast<int>(threadIdx.x);
    const PairRows pair_rows = op.rows(pair);
    const int row = t % T::kPairs / 16 * 32 + t % 16;
#pragma unroll 1
    for (int begin = t / T::kPairs; begin < end; begin += kBatch * kTokenStep) {
      if (!kEarly) locate(op, begin);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) op.prefetch(target[i]);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int token = begin + i * kTokenStep;
        if (token >= end) break;
        const RowScale scale = scales[token];
        int a = -scale.sum;
        int b = -scale.sum;
#pragma unroll
        for (int k = 0; k < T::kWarpsK; ++k) {
          const int* sums = tile + (k * T::kTokens + token) * T::kSumStride + row;
          a += sums[0];
          b += sums[16];
        }
        op.store(target[i], static_cast<float>(a) * ((pair_rows.scale[0] / scale.s) * scale.r),
                 static_cast<float>(b) * ((pair_rows.scale[1] / scale.s) * scale.r));
      }
    }
  }
};

// The tile of pairs and tokens from the named ones on; `shared` holds T::kCut.shared_bytes().
template <class T, class Op>
__device__ __forceinline__ void gemm_tile(const Op& op, const QuantisedRows& rows, int tokens,
                                          int first_pair, int first_token, int8_t* shared) {
  // Weights may come before the previous kernel has ended.
  const GemmCopies<T> copies(op, rows, first_pair, first_token, tokens);
#pragma unroll
  for (int s = 0; s < T::kStages - 1; ++s) {
    copies.fetch_weights(shared + s * T::kStageBytes, s * T::kSteps);
  }
  TileEpilogue<T, Op> epilogue(op, first_pair, first_token, tokens);
  wait_for_previous();
#pragma unroll
  for (int s = 0; s < T::kStages - 1; ++s) {
    copies.fetch_codes(shared + s * T::kStageBytes, s * T::kSteps);
    end_of_copies();
  }
  RowScale* scales = reinterpret_cast<RowScale*>(shared + T::kTileBytes);
  for (int i = static_cast<int>(threadIdx.x); i < T::kTokens; i += T::kThreads) {
    const int token = min(first_token + i, tokens - 1);
    scales[i] = {rows.sum[token], rows.s[token], rows.r[token]};
  }

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_k = warp % T::kWarpsK;
  const int warp_row = warp / T::kWarpsK % T::kWarpsM * T::kRowTiles * 16;
  const int warp_token = warp / T::kWarpsK / T::kWarpsM * T::kTokenTiles * 8;
  TernaryTile<T> tile;
  int stage = 0;
  int free_stage = T::kStages - 1;
  for (int first_step = 0; first_step < copies.steps; first_step += T::kSteps) {
    wait_for_copies_but<T::kStages - 2>();
    // This stage has arrived for every thread, and every warp is done with the one before, which
    // is filled next.
    __syncthreads();
    int8_t* next = shared + free_stage * T::kStageBytes;
    const int next_step = first_step + (T::kStages - 1) * T::kSteps;
    if (next_step < copies.steps) {
      copies.fetch_weights(next, next_step);
      copies.fetch_codes(next, next_step);
    }
    end_of_copies();
    const int8_t* weights = shared + stage * T::kStageBytes;
    const int8_t* codes = weights + T::kSteps * T::kWeightPlane;
#pragma unroll
    for (int step = 0; step < T::kSteps; step += T::kWarpsK) {
      tile.add(weights + (step + warp_k) * T::kWeightPlane + warp_row * 16,
               codes + (step + warp_k) * T::kCodePlane + warp_token * 64);
    }
    free_stage = stage;
    stage = stage + 1 == T::kStages ? 0 : stage + 1;
  }

  // The sums take the place of the stages.
  wait_for_copies();
  __syncthreads();
  int* sums = reinterpret_cast<int*>(shared);
  tile.write(sums + (warp_k * T::kTokens + warp_token) * T::kSumStride + warp_row);
  __syncthreads();
  epilogue.store(op, sums, scales);
}

// Block (i, j): tile i of the pairs, tile j of the tokens.
template <class T, class Op>
__global__ void __launch_bounds__(T::kThreads) gemm_kernel(Op op, QuantisedRows rows, int tokens) {
  extern __shared__ uint4 shared_memory[];
  int8_t* shared = reinterpret_cast<int8_t*>(shared_memory);
  const int first_pair = static_cast<int>(blockIdx.x) * T::kPairs;
  const int first_token = static_cast<int>(blockIdx.y) * T::kTokens;
  let_next_start();
  gemm_tile<T>(op, rows, tokens, first_pair, first_token, shared);
}

// The tile kGemmTiles[I].
template <size_t I>
using GemmTiling = TernaryTiling<kGemmTiles[I].row_tiles, kGemmTiles[I].token_tiles,
                                 kGemmTiles[I].warps_m, kGemmTiles[I].warps_n,
                                 kGemmTiles[I].warps_k, kGemmTiles[I].steps, kGemmTiles[I].stages>;

// ---- Launches -------------------------------------------------------------------------------

template <class Op, size_t... I>
void launch_gemm(const GemmPlan& plan, const Op& op, const QuantisedRows& rows, int tokens,
                 cudaStream_t stream, std::index_sequence<I...>) {
  const auto launch_if = [&](bool is_instance, auto kernel) {
    if (is_instance) launch(kernel, plan.launch, stream, op, rows, tokens);
    return is_instance;
  };
  require_instance(
      (launch_if(plan.tile == static_cast<GemmTile>(I), gemm_kernel<GemmTiling<I>, Op>) || ...));
}

}  // namespace

template <class Op>
void multiply(const GemmPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream) {
  const QuantisedRows quantised =
      quantise_rows(plan.quantise, CodeOrder::kRows, in, rows, workspace, stream);
  launch_gemm(plan, op, quantised, rows, stream, std::make_index_sequence<kNumGemmTiles>());
}

template void multiply(const GemmPlan&, const Input&, const QkvOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const GemmPlan&, const Input&, const ProjectOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const GemmPlan&, const Input&, const FfnUpOp&, int, const Workspace&,
                       cudaStream_t);

}  // namespace edgellm::cuda
