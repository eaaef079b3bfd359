// The bounds of certified_head for many rows, called "tokens" here because the head has rows as
// well: products of the head's int8 codes with the two digits of the steps on the tensor cores.
//
// A block makes a tile of head rows x tokens. Copies of the next stages into shared memory run
// while the tensor cores work on the present one. A lane ends with the sums of whole products and
// makes their bounds by itself; eight lanes write neighbouring entries of the vocabulary.
#include <utility>

#include "kernels/certified_head.h"
#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/head_certified.cuh"
#include "kernels/cuda/head_kernels.h"

namespace edgellm::cuda {
namespace {

static_assert(127LL * 255 * kMaxCertifiedCols <= INT32_MAX, "a digit's sum fits into an int");

// Columns of a stage, in 16-byte chunks: eight.
constexpr int kColumns = kDigitColumns;
constexpr int kChunks = kColumns / 16;

// Byte of a stage's row at which chunk `chunk` of the row lies: the eight rows of a matrix that a
// warp loads are spread over all banks.
__device__ inline int chunk_offset(int row, int chunk) { return (chunk ^ row % kChunks) * 16; }

// The tile kDigitTiles[I] as constants.
template <size_t I>
struct HeadTiling {
  static constexpr DigitCut kCut = kDigitTiles[I];
  static constexpr int kRowTiles = kCut.row_tiles;
  static constexpr int kTokenTiles = kCut.token_tiles;
  static constexpr int kWarpsM = kCut.warps_m;
  static constexpr int kStages = kCut.stages;
  static constexpr int kBlocks = kCut.blocks_per_sm;

  static constexpr int kThreads = kCut.threads();
  static constexpr int kWarpRows = kCut.warp_rows();
  static constexpr int kRows = kCut.rows();
  static constexpr int kTokens = kCut.tokens();
  static constexpr int kHighDigits = kCut.high_digits();
  static constexpr int kLowDigits = kCut.low_digits();
  static constexpr int kStageBytes = kCut.stage_bytes();

  static_assert(kRows * kChunks % kThreads == 0, "threads share the codes of a stage evenly");
};

// This thread's share of the copies into a stage: the same chunk of several rows and tokens. Those
// that do not exist are left out; their sums are never read.
template <class T>
struct HeadCopies {
  static constexpr int kRowStride = T::kThreads / kChunks;
  static constexpr int kTokenStride = T::kThreads / (2 * kChunks);
  static constexpr int kRowCopies = T::kRows / kRowStride;
  static constexpr int kTokenCopies = (T::kTokens + kTokenStride - 1) / kTokenStride;
  static_assert(kRowStride % kChunks == 0 && kTokenStride % kChunks == 0,
                "a chunk has the same place in all of a thread's rows");

  const int8_t* codes;   // of its first row, at column 0
  const int8_t* digits;  // of its first token, at column 0
  size_t pitch;
  int columns;  // of the codes, padding included
  int rows;     // of the tile that exist
  int tokens;   // likewise

  // Thread t has chunk t % kChunks of row t / kChunks, and of digit t / kChunks % 2 of token
  // t / (2 * kChunks).
  __device__ HeadCopies(const CertifiedHead& certified, const int16_t* steps, int first_row,
                        int first_token, int all_tokens)
      : pitch(certified.pitch()),
        columns(static_cast<int>(certified.pitch())),
        rows(min(certified.rows - first_row, T::kRows)),
        tokens(min(all_tokens - first_token, T::kTokens)) {
    const int t = static_cast<int>(threadIdx.x);
    codes = static_cast<const int8_t*>(certified.codes) +
            static_cast<size_t>(first_row + t / kChunks) * pitch + t % kChunks * 16;
    digits = reinterpret_cast<const int8_t*>(steps) +
             static_cast<size_t>(2 * first_token + t / kChunks) * pitch + t % kChunks * 16;
  }

  __device__ void fetch_codes(int8_t* stage, int first_column) const {
    const int t = static_cast<int>(threadIdx.x);
    if (first_column + t % kChunks * 16 >= columns) return;
    const int row = t / kChunks;
    int8_t* to = stage + row * kColumns + chunk_offset(row, t % kChunks);
    const int8_t* from = codes + first_column;
#pragma unroll
    for (int i = 0; i < kRowCopies; ++i) {
      if (row + i * kRowStride < rows) {
        copy_async(to + i * kRowStride * kColumns,
                   from + static_cast<size_t>(i * kRowStride) * pitch);
      }
    }
  }

  __device__ void fetch_digits(int8_t* stage, int first_column) const {
    const int t = static_cast<int>(threadIdx.x);
    if (first_column + t % kChunks * 16 >= columns) return;
    const int token = t / (2 * kChunks);
    int8_t* to = stage + (t / kChunks % 2 == 0 ? T::kHighDigits : T::kLowDigits) +
                 token * kColumns + chunk_offset(token, t % kChunks);
    const int8_t* from = digits + first_column;
#pragma unroll
    for (int i = 0; i < kTokenCopies; ++i) {
      if (token + i * kTokenStride < tokens) {
        copy_async(to + i * kTokenStride * kColumns,
                   from + static_cast<size_t>(2 * i * kTokenStride) * pitch);
      }
    }
  }
};

// A warp's sums of codes times digits. Of tile [m][n] lane 4 g + t has rows g (sums 0, 1) and g + 8
// (sums 2, 3), tokens 2 t (sums 0, 2) and 2 t + 1 (sums 1, 3).
template <class T>
struct DigitSums {
  int high[T::kRowTiles][T::kTokenTiles][4] = {};
  int low[T::kRowTiles][T::kTokenTiles][4] = {};

  // 64 columns of a stage from chunk `first_chunk` on. The matrices that a warp loads together: of
  // codes two times 8 rows, of two chunks each; of digits two chunks of the high and of the low
  // ones. `row` and `token`: the warp's first of the tile.
  __device__ void add(const int8_t* stage, int first_chunk, int row, int token) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int8_t* codes = stage + (row + lane % 16) * kColumns;
    const int8_t* digits =
        stage + (lane < 16 ? T::kHighDigits : T::kLowDigits) + (token + lane % 8) * kColumns;
#pragma unroll
    for (int chunk = first_chunk; chunk < first_chunk + 4; chunk += 2) {
      const int code_offset = chunk_offset(lane % 8, chunk + lane / 16);
      const int digit_offset = chunk_offset(lane % 8, chunk + lane / 8 % 2);
      uint32_t a[T::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < T::kRowTiles; ++m) {
        load_matrices(a[m], codes + m * 16 * kColumns + code_offset);
      }
#pragma unroll
      for (int n = 0; n < T::kTokenTiles; ++n) {
        uint32_t b[4];
        load_matrices(b, digits + n * 8 * kColumns + digit_offset);
#pragma unroll
        for (int m = 0; m < T::kRowTiles; ++m) {
          multiply_tile<int8_t, int8_t>(high[m][n], a[m], b[0], b[1]);
          multiply_tile<int8_t, uint8_t>(low[m][n], a[m], b[2], b[3]);
        }
      }
    }
  }
};

// What a block knows of its tokens.
template <class T>
struct BlockTokens {
  HiddenBound hidden[T::kTokens];
  uint32_t lower[T::kTokens];         // the largest lower bounds, for an arg-max
  const uint16_t* marks[T::kTokens];  // for choices; null where a sequence has none
};

// Bounds of a warp's tile: writes the upper ones, and the largest lower one of each token, but for
// ids that stand apart: an arg-max has those of the block in `tokens`. first_row: the warp's;
// warp_token: its first one of the block's, which begin with first_token.
template <class T, class Use>
__device__ void bound_tile(const HeadArgs& head, const CertifiedHead& certified, const Use& use,
                           const Workspace& workspace, const DigitSums<T>& tile, int first_row,
                           int first_token, int warp_token, BlockTokens<T>& tokens) {
  constexpr int kLaneRows = 2 * T::kRowTiles;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int vocab = certified.rows;
  CertifiedRow rows[kLaneRows];
  bool banned[kLaneRows];
#pragma unroll
  for (int r = 0; r < kLaneRows; ++r) {
    const int row = first_row + r * 8 + lane / 4;
    const float4 b =
        __ldg(reinterpret_cast<const float4*>(certified.row_bounds) + min(row, vocab - 1));
    rows[r] = {b.x, b.y, b.z, b.w};
    if constexpr (!Use::kByRules) banned[r] = is_banned(head, row);
  }
#pragma unroll
  for (int i = 0; i < 2 * T::kTokenTiles; ++i) {
    const int token = warp_token + i / 2 * 8 + lane % 4 * 2 + i % 2;
    const bool exists = first_token + token < head.rows;
    const HiddenBound h = tokens.hidden[token];
    const uint16_t* marks = Use::kByRules ? tokens.marks[token] : nullptr;
    const auto is_apart = [&](int r) {
      if constexpr (Use::kByRules) {
        return marks != nullptr && marks[first_row + r * 8 + lane / 4] != 0;
      } else {
        return banned[r];
      }
    };
    float* upper = head.logits +
                   static_cast<size_t>(first_token + token) * static_cast<size_t>(vocab) +
                   static_cast<size_t>(first_row + lane / 4);
    float best_lower = -INFINITY;
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      const int sum = r % 2 * 2 + i % 2;
      const int64_t product =
          static_cast<int64_t>(tile.high[r / 2][i / 2][sum]) * 256 + tile.low[r / 2][i / 2][sum];
      const LogitBounds bounds = logit_bounds(static_cast<float>(product), rows[r], h);
      if (!exists || first_row + r * 8 + lane / 4 >= vocab) continue;
      upper[r * 8] = bounds.upper;
      // False where there is no bound (NaN).
      if (bounds.lower > best_lower && !is_apart(r)) best_lower = bounds.lower;
    }
    // Over the lanes that share the token.
    for (int width = 16; width >= 4; width /= 2) {
      best_lower = fmaxf(best_lower, __shfl_xor_sync(kAllLanes, best_lower, width));
    }
    if constexpr (Use::kByRules) {
      if (lane < 4 && exists && first_row < vocab) {
        *use.lower_of(workspace, first_token + token, first_row / T::kWarpRows) = best_lower;
      }
    } else if (lane < 4 && best_lower > -INFINITY) {
      atomicMax(tokens.lower + token, ordered_bits(best_lower));
    }
  }
}

// The tile of head rows and tokens from the named ones on; `stages` holds T::kCut.shared_bytes().
template <class T, class Use>
__device__ __forceinline__ void bound_rows(const HeadArgs& head, const CertifiedHead& certified,
                                           const Use& use, const Workspace& workspace,
                                           int first_row, int first_token, int8_t* stages) {
  __shared__ BlockTokens<T> tokens;

  // Codes may come before the previous kernel has ended.
  const HeadCopies<T> copies(certified, workspace.steps, first_row, first_token, head.rows);
#pragma unroll
  for (int s = 0; s < T::kStages - 1; ++s) {
    copies.fetch_codes(stages + s * T::kStageBytes, s * kColumns);
  }
  wait_for_previous();
#pragma unroll
  for (int s = 0; s < T::kStages - 1; ++s) {
    copies.fetch_digits(stages + s * T::kStageBytes, s * kColumns);
    end_of_copies();
  }
  for (int i = static_cast<int>(threadIdx.x); i < T::kTokens; i += T::kThreads) {
    const int token = min(first_token + i, head.rows - 1);
    tokens.hidden[i] = workspace.hidden[token];
    if constexpr (Use::kByRules) {
      tokens.marks[i] = use.marks_of(token);
    } else {
      tokens.lower[i] = 0;
    }
  }

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp % T::kWarpsM * T::kRowTiles * 16;
  const int warp_token = warp / T::kWarpsM * T::kTokenTiles * 8;
  DigitSums<T> tile;
  int stage = 0;
  int free_stage = T::kStages - 1;
  for (int column = 0; column < copies.columns; column += kColumns) {
    wait_for_copies_but<T::kStages - 2>();
    // This stage has arrived for every thread, the first time with `tokens`. Every warp is done
    // with the stage before it, which is filled next.
    __syncthreads();
    int8_t* next = stages + free_stage * T::kStageBytes;
    copies.fetch_codes(next, column + (T::kStages - 1) * kColumns);
    copies.fetch_digits(next, column + (T::kStages - 1) * kColumns);
    end_of_copies();
    const int8_t* present = stages + stage * T::kStageBytes;
    tile.add(present, 0, warp_row, warp_token);
    // The codes end after any 64 columns.
    if (column + 64 < copies.columns) tile.add(present, 4, warp_row, warp_token);
    free_stage = stage;
    stage = stage + 1 == T::kStages ? 0 : stage + 1;
  }

  bound_tile(head, certified, use, workspace, tile, first_row + warp_row, first_token, warp_token,
             tokens);
  if constexpr (Use::kByRules) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < T::kTokens; i += T::kThreads) {
    // 0 for a token that does not exist: nothing was merged.
    if (tokens.lower[i] != 0) atomicMax(workspace.lower + first_token + i, tokens.lower[i]);
  }
}

// Block i: tile i % token_tiles of the tokens, tile i / token_tiles of the head's rows. Blocks of
// the same head rows run side by side: one of them brings the codes into the L2 cache.
template <class T, class Use>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    row_bounds_kernel(HeadArgs head, CertifiedHead certified, Use use, Workspace workspace,
                      int token_tiles) {
  extern __shared__ uint4 stages[];
  const int block = static_cast<int>(blockIdx.x);
  const int first_row = block / token_tiles * T::kRows;
  const int first_token = block % token_tiles * T::kTokens;
  let_next_start();
  bound_rows<T>(head, certified, use, workspace, first_row, first_token,
                reinterpret_cast<int8_t*>(stages));
}

template <class Use, size_t... I>
void launch_tiles(const DigitBoundsPlan& plan, const HeadArgs& head, const CertifiedHead& certified,
                  const Use& use, const Workspace& workspace, cudaStream_t stream,
                  std::index_sequence<I...>) {
  const auto launch_if = [&](bool is_instance, auto kernel) {
    if (is_instance) {
      launch(kernel, plan.launch, stream, head, certified, use, workspace, plan.token_tiles);
    }
    return is_instance;
  };
  require_instance(
      (launch_if(plan.tile == static_cast<DigitTile>(I), row_bounds_kernel<HeadTiling<I>, Use>) ||
       ...));
}

}  // namespace

void launch_bounds(const DigitBoundsPlan& plan, const CertifiedHeadArgs& args,
                   const Workspace& workspace, cudaStream_t stream) {
  launch_tiles(plan, args.head, args.certified, ForArgMax{}, workspace, stream,
               std::make_index_sequence<kNumDigitTiles>());
}

void launch_bounds(const DigitBoundsPlan& plan, const CertifiedChooseArgs& args,
                   const Workspace& workspace, cudaStream_t stream) {
  launch_tiles(plan, args.head, args.certified, ForChoices{args.choose, plan.groups}, workspace,
               stream, std::make_index_sequence<kNumDigitTiles>());
}

}  // namespace edgellm::cuda
