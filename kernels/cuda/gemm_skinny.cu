// qkv, attn_out, ffn_up and ffn_down for some activation rows ("tokens"), two and more, each in one
// launch (compute capability 9.0 and newer). A cluster takes 8 or 16 tokens.
//
// If every block quantised all tokens, as gemv.cu does with one, reading and quantising would cost
// more than the products. Here the blocks come in clusters that share the columns. A block
// quantises its eighth of every token. It multiplies it, on the tensor cores, with its eighth of
// the columns of the cluster's weight rows, which it has fetched before the previous kernel has
// ended. What goes from block to block is small: first the largest magnitudes, which quantising
// needs of the whole token; then the sums of products, which each block adds up and stores for an
// eighth of the rows.
//
// The RMS factor is needed only at the end. Where rows are short, each block makes an eighth of the
// partial sums of canonical_sum of every token, one a lane, and sends them to all blocks. With long
// rows that would take as long as quantising. There the first cluster does nothing else than make
// the factors, which it tells the other clusters through global memory while these multiply.
#include <utility>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/ternary_tile.cuh"
#include "kernels/cuda/linear_kernels.cuh"

namespace edgellm::cuda {
namespace {

constexpr int kCluster = kClusterBlocks;
// A warp quantises every eighth token, and multiplies the weight rows whose results one block
// stores.
constexpr int kBlockWarps = 8;
constexpr int kBlockThreads = 32 * kBlockWarps;
static_assert(kBlockWarps == kCluster && 32 * kCluster == kPartials);

// ---- The kernel -----------------------------------------------------------------------------

// The weight rows of a cluster.
template <int kRowTiles, int kTokenTiles>
using SkinnyTile = TernaryTiling<kRowTiles, kTokenTiles, kBlockWarps, 1, 1, 1, 1>;

// Of all tokens, from all blocks.
template <int kTokens>
struct SkinnyShared {
  Inbox maxima, squares, results;
  alignas(16) uint32_t max[kTokens][kCluster];
  alignas(16) int32_t sum[kTokens][kCluster];  // of the codes
  float s[kTokens];                            // codes per unit
  float r[kTokens];                            // RMS factor
};

// The dynamic shared memory of a block that has up to `steps` K steps of 64 columns:
// skinny_bytes().
template <class T>
struct SkinnyMemory {
  static constexpr int kOwnRows = T::kRows / kCluster;  // whose results the block stores

  int8_t* weights;  // [steps][T::kWeightPlane]
  int8_t* codes;    // [steps][T::kCodePlane]
  // Sums of products from all blocks, [kCluster][tile of 16 rows][tile of 8 tokens], as a warp
  // holds them: lane 4 g + t has rows g and g + 8 of tokens 2 t and 2 t + 1.
  int4 (*sums)[kOwnRows / 16][T::kTokenTiles][32];
  float* gain;                  // [steps][64]
  float (*squares)[kPartials];  // [T::kTokens]: partial sums, from all blocks; of short rows only

  __device__ SkinnyMemory(uint4* memory, int steps) {
    weights = reinterpret_cast<int8_t*>(memory);
    codes = weights + steps * T::kWeightPlane;
    sums =
        reinterpret_cast<int4(*)[kOwnRows / 16][T::kTokenTiles][32]>(codes + steps * T::kCodePlane);
    gain = reinterpret_cast<float*>(sums + kCluster);
    squares = reinterpret_cast<float(*)[kPartials]>(gain + steps * 64);
  }
};

// The columns of a block: K steps first_step .. first_step + steps - 1 of 64 columns each.
struct ColumnShare {
  int first_step, steps;
  int first_column, end_column;

  __device__ __forceinline__ ColumnShare(int rank, int all_steps, int cols)
      : first_step(rank * all_steps / kCluster),
        steps((rank + 1) * all_steps / kCluster - first_step),
        first_column(64 * first_step),
        end_column(min(64 * (first_step + steps), cols)) {}
};

// Fetches the block's columns of the weight rows that the warp multiplies.
template <class T, class Op>
__device__ __forceinline__ void fetch_rows(const Op& op, int first_pair, const ColumnShare& share,
                                           int8_t* weights) {
  constexpr int kOwnRows = SkinnyMemory<T>::kOwnRows;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = warp * kOwnRows + lane / 8; row < (warp + 1) * kOwnRows; row += 4) {
    const TileRow tile_row(row);
    const int pair = first_pair + tile_row.pair;
    if (pair >= op.pairs()) continue;
    const PairRows rows = op.rows(pair);
    const uint32_t* words = tile_row.which == 1 ? rows.words[1] : rows.words[0];
    if (words == nullptr) continue;
    for (int step = lane % 8; step < share.steps; step += 8) {
      copy_async(weights + step * T::kWeightPlane + row * 16,
                 words + 4 * (share.first_step + step));
    }
  }
}

// ---- The RMS factors --------------------------------------------------------------------------

// Those of a row of the grid's tokens, as its first cluster tells them to the others. A factor is
// never negative, so its bits with the sign set are never 0.
struct ToldFactors {
  uint32_t* r;    // [tokens] 0: not yet told
  int32_t* read;  // blocks that have read all
  int readers;    // blocks that will

  __device__ __forceinline__ void tell(int token, float factor) const {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(r + token),
                 "r"(__float_as_uint(factor) | 0x80000000u)
                 : "memory");
  }
  __device__ __forceinline__ uint32_t look(int token) const {
    uint32_t bits = 0;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(r + token) : "memory");
    return bits;
  }
  // `seen`: what a look has found.
  __device__ __forceinline__ float wait_for(int token, uint32_t seen) const {
    while (seen == 0) seen = look(token);
    return __uint_as_float(seen & 0x7fffffffu);
  }
  // Returns the number of blocks that had counted themselves before; the last makes it 0 again.
  // (With an addition the compiler would wait for the result at once.)
  __device__ __forceinline__ int count_reader() const {
    return static_cast<int>(
        atomicInc(reinterpret_cast<unsigned*>(read), static_cast<unsigned>(readers - 1)));
  }
  // By the last block that has read all: for the next launch.
  __device__ __forceinline__ void clear(int tokens) const {
    for (int i = 0; i < tokens; ++i) r[i] = 0;
  }
};

// Block `rank` makes the factors of every eighth token. kLoads: columns of a thread, at most.
template <int kBlockTokens, int kLoads>
__device__ __forceinline__ void tell_factors(const Input& in, int tokens, int rank,
                                             const ToldFactors& told) {
  static_assert(kBlockThreads == kPartials);
  __shared__ float partials[kBlockTokens][kPartials];
  const int t = static_cast<int>(threadIdx.x);
  wait_for_previous();
  float v[kBlockTokens][kLoads];
#pragma unroll
  for (int n = 0; n < kBlockTokens; ++n) {
    const int token = min(rank + n * kCluster, tokens - 1);
    const float* x = in.x + static_cast<size_t>(token) * static_cast<size_t>(in.cols);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int column = t + kPartials * i;
      v[n][i] = column < in.cols ? x[column] : 0.0f;
    }
  }
#pragma unroll
  for (int n = 0; n < kBlockTokens; ++n) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum = fmaf(v[n][i], v[n][i], sum);
    partials[n][t] = sum;
  }
  __syncthreads();
  const int token = rank + t / 32 * kCluster;
  if (t / 32 >= kBlockTokens || token >= tokens) return;
  const float factor = rms_factor(fold_partials(partials[t / 32]), in.cols, in.eps);
  if (t % 32 == 0) told.tell(token, factor);
}

// Sends partial sums of canonical_sum of a token's squares, of which a lane has one, to all blocks.
// Lane 8 i + j sends the sums of lanes 4 j .. 4 j + 3 to blocks i and i + 4.
__device__ __forceinline__ void send_squares(float sum, int token, int rank,
                                             float (*squares)[kPartials], Inbox& inbox) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int from = lane % 8 * 4;
  const float4 sums = {__shfl_sync(kAllLanes, sum, from), __shfl_sync(kAllLanes, sum, from + 1),
                       __shfl_sync(kAllLanes, sum, from + 2),
                       __shfl_sync(kAllLanes, sum, from + 3)};
  float4* at = reinterpret_cast<float4*>(&squares[token][32 * rank + from]);
  inbox.send(lane / 8, at, sums);
  inbox.send(lane / 8 + 4, at, sums);
}

// ---- Quantising -------------------------------------------------------------------------------

// The tokens that a warp quantises. It does a step for all of them before the next step: so it
// waits for memory, and for each result, once for all. Where it has one, the last token stands in
// for those that do not exist; nothing is sent for these.
template <class T, int kQuads>
struct WarpTokens {
  static constexpr int kCount = T::kTokenTiles;

  int tokens;
  float4 z[kCount][kQuads];  // the block's columns, times gain

  __device__ static int number(int n) {
    return static_cast<int>(threadIdx.x) / 32 + n * kBlockWarps;
  }
  __device__ __forceinline__ bool exists(int n) const { return number(n) < tokens; }
  __device__ __forceinline__ const float* row(const Input& in, int n) const {
    return in.x + static_cast<size_t>(min(number(n), tokens - 1)) * static_cast<size_t>(in.cols);
  }
  // Among one token a warp many may have none.
  __device__ __forceinline__ bool works() const { return kCount > 1 || exists(0); }

  __device__ __forceinline__ WarpTokens(const Input& in, const ColumnShare& share, int tokens_)
      : tokens(tokens_) {
    if (!works()) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const float* x = row(in, n);
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        z[n][j] = four<true>(x, share.first_column + 4 * (lane + 32 * j), share.end_column);
      }
    }
  }

  // Multiplies by the gain, and tells the blocks the largest magnitudes.
  __device__ __forceinline__ void send_maxima(const Input& in, const ColumnShare& share, int rank,
                                              const float* gain, SkinnyShared<T::kTokens>& shared) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t largest[kCount] = {};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int i = 4 * (lane + 32 * j);
      if (in.gain != nullptr && share.first_column + i < share.end_column) {
        const float4 of_columns = *reinterpret_cast<const float4*>(gain + i);
#pragma unroll
        for (int n = 0; n < kCount; ++n) z[n][j] = product(z[n][j], of_columns);
      }
#pragma unroll
      for (int n = 0; n < kCount; ++n) largest[n] = max(largest[n], magnitude(z[n][j]));
    }
#pragma unroll
    for (int n = 0; n < kCount; ++n) largest[n] = max_warp(largest[n]);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      if (lane < kCluster && exists(n)) {
        shared.maxima.send(lane, &shared.max[number(n)][rank], largest[n]);
      }
    }
  }

  // Of short rows: what the block's eighth of the partial sums of canonical_sum is made of. A lane
  // has one of each token's.
  __device__ __forceinline__ void load_squares(const Input& in, int rank,
                                               float (&v)[kCount][kShortSquares]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const float* x = row(in, n);
#pragma unroll
      for (int i = 0; i < kShortSquares; ++i) {
        const int column = 32 * rank + lane + kPartials * i;
        v[n][i] = column < in.cols ? x[column] : 0.0f;
      }
    }
  }
  __device__ __forceinline__ void send_sums_of(const float (&v)[kCount][kShortSquares], int rank,
                                               float (*squares)[kPartials], Inbox& inbox) const {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kShortSquares; ++i) sum = fmaf(v[n][i], v[n][i], sum);
      if (exists(n)) send_squares(sum, number(n), rank, squares, inbox);
    }
  }
  // The RMS factors of short rows, when the squares are there.
  __device__ __forceinline__ void make_factors(const Input& in, const SkinnyMemory<T>& memory,
                                               SkinnyShared<T::kTokens>& shared) const {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const float r = rms_factor(fold_partials(memory.squares[number(n)]), in.cols, in.eps);
      if (threadIdx.x % 32 == 0) shared.r[number(n)] = r;
    }
  }

  // Quantises the tokens, when the maxima are there.
  __device__ __forceinline__ void quantise_all(const Input& in, const ColumnShare& share, int rank,
                                               const SkinnyMemory<T>& memory,
                                               SkinnyShared<T::kTokens>& shared) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    RowFactors factors[kCount];
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      factors[n] =
          row_factors(max_warp(shared.max[number(n)][lane % kCluster]), in.gain != nullptr);
    }
    int sum[kCount] = {};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int quad = lane + 32 * j;
      if (quad >= 16 * share.steps) break;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        const uint32_t four_codes = factors[n].zero ? 0 : quantise(z[n][j], factors[n].s);
        sum[n] = __dp4a(static_cast<int>(four_codes), 0x01010101, sum[n]);
        *reinterpret_cast<uint32_t*>(memory.codes + quad / 16 * T::kCodePlane + number(n) * 64 +
                                     quad % 16 * 4) = four_codes;
      }
    }
#pragma unroll
    for (int n = 0; n < kCount; ++n) sum[n] = sum_warp(sum[n]);
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      if (!exists(n)) continue;
      if (lane < kCluster) shared.results.send(lane, &shared.sum[number(n)][rank], sum[n]);
      if (lane != 0) continue;
      shared.s[number(n)] = factors[n].s;
      if (!factors[n].finite && rank == 0) set_fault(in.fault, in.layer + 1);
    }
  }
};

// Adds up the sums of a pair and a token from all blocks and stores the result.
template <class T, class Op>
__device__ __forceinline__ void store_result(const Op& op, const typename Op::Target& target,
                                             const SkinnyMemory<T>& memory,
                                             const SkinnyShared<T::kTokens>& shared, int own_pair,
                                             int token, const float (&scale)[2]) {
  // TileRow: rows of the pair are in neighbouring tiles.
  const int m = own_pair / 16 * 2;
  const int n = token / 8;
  const int at = own_pair % 8 * 16 + token % 8 / 2 * 4 + own_pair / 8 % 2 * 2 + token % 2;
  int a = 0;
  int b = 0;
  int sum = 0;
#pragma unroll
  for (int from = 0; from < kCluster; ++from) {
    a += reinterpret_cast<const int*>(memory.sums[from][m][n])[at];
    b += reinterpret_cast<const int*>(memory.sums[from][m + 1][n])[at];
    sum += shared.sum[token][from];
  }
  const float s = shared.s[token];
  const float r = shared.r[token];
  op.store(target, static_cast<float>(unscaled(a) - sum) * ((scale[0] / s) * r),
           static_cast<float>(unscaled(b) - sum) * ((scale[1] / s) * r));
}

// The results that a thread stores: every kBlockThreads-th of those of its block.
template <class T, class Op>
struct SkinnyResults {
  static constexpr int kOwnPairs = SkinnyMemory<T>::kOwnRows / 2;
  static constexpr int kResults = divide_up(kOwnPairs * T::kTokens, kBlockThreads);

  typename Op::Target target[kResults];
  float scale[kResults][2];
  uint32_t stores = 0;  // bit k: there is a result k

  __device__ static int index(int k) { return static_cast<int>(threadIdx.x) + k * kBlockThreads; }
  __device__ static int own_pair(int k) { return index(k) / T::kTokens; }
  __device__ static int token(int k) { return index(k) % T::kTokens; }

  // The block's pairs begin at `first_pair`.
  __device__ __forceinline__ SkinnyResults(const Op& op, int first_pair, int first_token,
                                           int tokens) {
#pragma unroll
    for (int k = 0; k < kResults; ++k) {
      const int pair = first_pair + own_pair(k);
      if (own_pair(k) >= kOwnPairs || token(k) >= tokens || pair >= op.pairs()) continue;
      stores |= 1u << k;
      const PairRows rows = op.rows(pair);
      scale[k][0] = rows.scale[0];
      scale[k][1] = rows.scale[1];
      target[k] = op.locate(first_token + token(k), pair);
    }
  }
  __device__ __forceinline__ void prefetch(const Op& op) {
#pragma unroll
    for (int k = 0; k < kResults; ++k) {
      if ((stores >> k & 1) != 0) op.prefetch(target[k]);
    }
  }
  __device__ __forceinline__ void store(const Op& op, const SkinnyMemory<T>& memory,
                                        const SkinnyShared<T::kTokens>& shared) const {
#pragma unroll
    for (int k = 0; k < kResults; ++k) {
      if ((stores >> k & 1) == 0) continue;
      store_result(op, target[k], memory, shared, own_pair(k), token(k), scale[k]);
    }
  }
};

// A cluster's item: the pairs from item * T::kPairs on, for `tokens` from first_token on, whose
// rows `in` has; this is its block `rank`. kQuads, kTells: SkinnyKind.
template <class T, class Op, int kQuads, bool kTells>
__device__ __forceinline__ void skinny_gemm(const Input& in, const Op& op, int first_token,
                                            int tokens, int item, int rank, const ToldFactors& told,
                                            uint4* shared_memory) {
  constexpr int kOwnRows = SkinnyMemory<T>::kOwnRows;
  __shared__ SkinnyShared<T::kTokens> shared;
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const ColumnShare share(rank, op.row_words / 4, in.cols);
  const SkinnyMemory<T> memory(shared_memory, skinny_steps(op.row_words));
  const bool has_gain = in.gain != nullptr;
  const bool is_told = has_gain && kTells;
  const bool sends_squares = has_gain && !kTells;
  let_next_start();
  if (t == 0) {
    shared.maxima.init(kCluster * 4 * tokens);
    if (sends_squares) shared.squares.init(4 * kPartials * tokens);
    shared.results.init(kCluster * 4 * (kOwnRows * T::kTokens + tokens));
  }
  cluster_arrive();

  if (has_gain) {
    for (int i = 4 * t; i < share.end_column - share.first_column; i += 4 * kBlockThreads) {
      copy_async(memory.gain + i, in.gain + share.first_column + i);
    }
  }
  end_of_copies();
  const int first_pair = item * T::kPairs;
  fetch_rows<T>(op, first_pair, share, memory.weights);
  end_of_copies();
  SkinnyResults<T, Op> results(op, first_pair + rank * (kOwnRows / 2), first_token, tokens);

  cluster_wait();  // the inboxes of all blocks are open
  wait_for_older_copies();
  __syncthreads();  // the gain is there

  wait_for_previous();
  results.prefetch(op);
  WarpTokens<T, kQuads> own(in, share, tokens);
  const bool works = own.works();
  if (works) {
    float squares[T::kTokenTiles][kShortSquares];
    if (sends_squares) own.load_squares(in, rank, squares);
    own.send_maxima(in, share, rank, memory.gain, shared);
    if (sends_squares) own.send_sums_of(squares, rank, memory.squares, shared.squares);
  }
  shared.maxima.wait();
  if (works) own.quantise_all(in, share, rank, memory, shared);
  wait_for_copies();
  __syncthreads();  // the codes are there

  const bool reads_factor = is_told && t < tokens;
  const uint32_t seen = reads_factor ? told.look(t) : 0;

  // The columns of tokens that do not exist are not set; their sums are never read.
  TernaryTile<T> tile;
#pragma unroll 2
  for (int step = 0; step < share.steps; ++step) {
    tile.add(memory.weights + step * T::kWeightPlane + warp * kOwnRows * 16,
             memory.codes + step * T::kCodePlane);
  }
  int read = -1;  // blocks that had read the factors before
  if (warp == 0 && !sends_squares) {
    if (t < tokens) shared.r[t] = is_told ? told.wait_for(t, seen) : 1.0f;
    __syncwarp();
    if (reads_factor && t == 0) read = told.count_reader();
  }
#pragma unroll
  for (int m = 0; m < T::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < T::kTokenTiles; ++n) {
      const int(&sums)[4] = tile.sums[m][n];
      shared.results.send(warp, &memory.sums[rank][m][n][lane],
                          make_int4(sums[0], sums[1], sums[2], sums[3]));
    }
  }
  if (sends_squares) {
    shared.squares.wait();
    if (works) own.make_factors(in, memory, shared);
  }
  __syncthreads();  // the factors are there
  shared.results.wait();
  results.store(op, memory, shared);
  if (is_told && read == told.readers - 1) told.clear(tokens);
}

// Cluster i of row j of the grid: item i, the j-th T::kTokens tokens. Where factors are told the
// first tells them, and the items come after it. (The others wait for it. So it must run at the
// latest when they do; blocks start in order.)
template <class Op, int kRowTiles, int kTokenTiles, int kQuads, bool kTells>
__global__ void __launch_bounds__(kBlockThreads, kTokenTiles == 1   ? 3
                                                 : kTokenTiles == 2 ? 2
                                                                    : 1)
    skinny_kernel(Input in, Op op, int tokens, ToldFactors told) {
  using T = SkinnyTile<kRowTiles, kTokenTiles>;
  extern __shared__ uint4 shared_memory[];
  const int first_token = static_cast<int>(blockIdx.y) * T::kTokens;
  in.x += static_cast<size_t>(first_token) * static_cast<size_t>(in.cols);
  tokens = min(T::kTokens, tokens - first_token);
  told.r += first_token;
  told.read += blockIdx.y;
  int item = static_cast<int>(blockIdx.x) / kCluster;
  if (kTells && in.gain != nullptr) {
    if (item == 0) {
      let_next_start();
      return tell_factors<kTokenTiles, 4 * kQuads>(in, tokens, cluster_rank(), told);
    }
    --item;
  }
  skinny_gemm<T, Op, kQuads, kTells>(in, op, first_token, tokens, item, cluster_rank(), told,
                                     shared_memory);
}

// Launches the instance that the plan names: for rows of kSkinnyKinds[I].
template <int kRowTiles, int kTokenTiles, class Op, size_t... I>
bool launch_skinny(const SkinnyPlan& plan, const Input& in, const Op& op, int tokens,
                   const Workspace& workspace, cudaStream_t stream, std::index_sequence<I...>) {
  static_assert(SkinnyTile<kRowTiles, kTokenTiles>::kThreads == kBlockThreads);
  if (plan.row_tiles != kRowTiles || plan.token_tiles != kTokenTiles) return false;
  const ToldFactors told{workspace.rms, workspace.rms_read, plan.launch.blocks[0] - kCluster};
  const auto launch_if = [&](bool is_instance, auto kernel) {
    if (is_instance) {
      launch_clusters(kernel, kClusterBlocks, plan.launch, stream, in, op, tokens, told);
    }
    return is_instance;
  };
  return (launch_if(plan.kind == static_cast<int>(I),
                    skinny_kernel<Op, kRowTiles, kTokenTiles, kSkinnyKinds[I].quads,
                                  kSkinnyKinds[I].tells>) ||
          ...);
}

}  // namespace

bool has_clusters() {
  // Instances differ neither in their threads nor in the shared memory that is asked for.
  constexpr SkinnyKind kKind = kSkinnyKinds[0];
  static const bool has = room_for_cluster(skinny_kernel<ProjectOp, 2, 1, kKind.quads, kKind.tells>,
                                           kClusterBlocks, kBlockThreads, max_dynamic_shared());
  return has;
}

template <class Op>
void multiply(const SkinnyPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream) {
  constexpr auto kKinds = std::make_index_sequence<kNumSkinnyKinds>();
  require_instance(launch_skinny<2, 1>(plan, in, op, rows, workspace, stream, kKinds) ||
                   launch_skinny<4, 1>(plan, in, op, rows, workspace, stream, kKinds) ||
                   launch_skinny<2, 2>(plan, in, op, rows, workspace, stream, kKinds) ||
                   launch_skinny<4, 2>(plan, in, op, rows, workspace, stream, kKinds));
}

template void multiply(const SkinnyPlan&, const Input&, const QkvOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const SkinnyPlan&, const Input&, const ProjectOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const SkinnyPlan&, const Input&, const FfnUpOp&, int, const Workspace&,
                       cudaStream_t);

}  // namespace edgellm::cuda
