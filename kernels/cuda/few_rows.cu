// qkv, attn_out, ffn_up and ffn_down for two to eight activation rows ("tokens"), each in one
// launch (compute capability 9.0 and newer).
//
// What linear.cu does for one token would cost every block the reading and quantising of all of
// them. Here the blocks come in clusters, as large as there are tokens: a block quantises one token
// and writes its codes into the shared memory of the whole cluster. Then each block multiplies its
// own weight rows, fetched before the previous kernel has ended, with all tokens on the tensor
// cores. The RMS factor, which is needed only at the end, is made by a warp of its own meanwhile.
#include "kernels/cuda/few_rows.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ternary_tile.cuh"

namespace edgellm::cuda {
namespace {

constexpr int kTokens = 8;  // at most: the columns of a tensor core's tile
constexpr int kMultiplyWarps = 11;
constexpr int kMultiplyThreads = 32 * kMultiplyWarps;
constexpr int kBlockThreads = kMultiplyThreads + 32;

// The warps that multiply share a token's codes without the service warp.
constexpr int kMultiplyBarrier = 1;

// ---- Clusters -------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define EDGELLM_HAS_CLUSTERS 1
#endif

__device__ inline int cluster_rank() {
  int rank = 0;
#ifdef EDGELLM_HAS_CLUSTERS
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// A barrier of all threads of the cluster, in two halves. What a thread has written before
// cluster_release() is there for everyone that has waited; a thread that has nothing to show
// arrives without the fence of the whole GPU that this takes.
__device__ inline void cluster_release() {
#ifdef EDGELLM_HAS_CLUSTERS
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ inline void cluster_arrive() {
#ifdef EDGELLM_HAS_CLUSTERS
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#ifdef EDGELLM_HAS_CLUSTERS
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// The place in the shared memory of block `rank` that `here` is in this block's; store_in() writes
// there.
[[maybe_unused]] __device__ inline uint32_t address_in(const void* here, int rank) {
  uint32_t there = 0;
#ifdef EDGELLM_HAS_CLUSTERS
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(here))), "r"(rank));
#endif
  return there;
}
__device__ inline void store_in(const uint4* here, int rank, uint4 value) {
#ifdef EDGELLM_HAS_CLUSTERS
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address_in(here, rank)),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
#endif
}
__device__ inline void store_in(const float* here, int rank, float value) {
#ifdef EDGELLM_HAS_CLUSTERS
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address_in(here, rank)), "f"(value)
               : "memory");
#endif
}
__device__ inline void store_in(const int32_t* here, int rank, int32_t value) {
#ifdef EDGELLM_HAS_CLUSTERS
  asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(address_in(here, rank)), "r"(value)
               : "memory");
#endif
}

// ---- The kernel -----------------------------------------------------------------------------

struct Shared {
  uint32_t max[kMultiplyWarps];
  int32_t sum[kMultiplyWarps];  // of the block's token
  RowScale scale[kTokens];      // of all tokens
};

template <int kRowTiles>
using Tile = Tiling<kRowTiles, 1, 1, 1, kMultiplyWarps, kMultiplyWarps, 1>;

// The weights and codes of a block in bytes. Sums take the place of the weights: the less memory a
// block has, the earlier the next kernel's blocks find room and fetch their weights.
template <class T>
__host__ __device__ constexpr int weight_bytes(int steps) {
  return steps * T::kWeightPlane > T::kSumBytes ? steps * T::kWeightPlane : T::kSumBytes;
}
template <class T>
__host__ __device__ constexpr int shared_bytes(int steps) {
  return weight_bytes<T>(steps) + steps * T::kCodePlane;
}

// Quantises a row with the threads that multiply: its codes go to token `rank` of `codes`, its
// scale but for the RMS factor to shared.scale[rank], in all blocks of the cluster. kQuads: fours
// of columns of a thread.
template <class T, int kQuads>
__device__ void quantise_token(const Input& in, const float4 (&gain)[kQuads], int rank, int cluster,
                               int steps, int8_t* codes, Shared& shared) {
  const int t = static_cast<int>(threadIdx.x);
  const float* x = in.x + static_cast<size_t>(rank) * static_cast<size_t>(in.cols);
  const bool has_gain = in.gain != nullptr;
  float4 z[kQuads];
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) z[j] = four<true>(x, 4 * (t + j * kMultiplyThreads), in.cols);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    if (has_gain) z[j] = product(z[j], gain[j]);
    largest = max(largest, magnitude(z[j]));
  }
  largest = max_warp(largest);
  if (t % 32 == 0) shared.max[t / 32] = largest;
  barrier_sync(kMultiplyBarrier, kMultiplyThreads);
  largest = max_warp(shared.max[t % 32 < kMultiplyWarps ? t % 32 : 0]);
  const RowFactors factors = row_factors(largest, has_gain);
  if (!factors.finite && t == 0) set_fault(in.fault, in.layer + 1);

  int sum = 0;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int quad = t + j * kMultiplyThreads;
    if (quad >= 16 * steps) break;
    const uint32_t four_codes = factors.zero ? 0 : quantise(z[j], factors.s);
    sum = __dp4a(static_cast<int>(four_codes), 0x01010101, sum);
    *reinterpret_cast<uint32_t*>(codes + quad / 16 * T::kCodePlane + rank * 64 + quad % 16 * 4) =
        four_codes;
  }
  sum = sum_warp(sum);
  if (t % 32 == 0) shared.sum[t / 32] = sum;
  barrier_sync(kMultiplyBarrier, kMultiplyThreads);
  for (int chunk = t; chunk < 4 * steps; chunk += kMultiplyThreads) {
    const uint4* here = reinterpret_cast<const uint4*>(codes + chunk / 4 * T::kCodePlane +
                                                       rank * 64 + chunk % 4 * 16);
    const uint4 sixteen = *here;
    for (int other = 0; other < cluster; ++other) {
      if (other != rank) store_in(here, other, sixteen);
    }
  }
  if (t < cluster) {
    sum = 0;
    for (int w = 0; w < kMultiplyWarps; ++w) sum += shared.sum[w];
    store_in(&shared.scale[rank].sum, t, sum);
    store_in(&shared.scale[rank].s, t, factors.s);
  }
}

// The barriers of the cluster, in turn:
//   1. all blocks run, so that others may write into their shared memory;
//   2. the codes of all tokens are there;
//   3. their RMS factors, too, and nobody writes into a block that has ended.

// The service warp's part: the RMS factor of the block's token, for all blocks of the cluster.
__device__ inline void serve(const Input& in, bool has_token, int rank, int cluster,
                             Shared& shared) {
  cluster_wait();
  cluster_arrive();
  wait_for_previous();
  float r = 1.0f;
  if (has_token && in.gain != nullptr) {
    const float* x = in.x + static_cast<size_t>(rank) * static_cast<size_t>(in.cols);
    r = rms_factor(sum_of_squares<true>(x, in.cols), in.cols, in.eps);
  }
  cluster_wait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < cluster) store_in(&shared.scale[rank].r, lane, r);
  cluster_release();
  cluster_wait();
}

template <class Op, int kRowTiles, int kQuads>
__global__ void __launch_bounds__(kBlockThreads, 2)
    few_rows_kernel(Input in, Op op, int tokens, int cluster) {
  using T = Tile<kRowTiles>;
  extern __shared__ uint4 shared_memory[];
  __shared__ Shared shared;
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const int steps = op.row_words / 4;
  const int rank = cluster_rank();
  const bool has_token = rank < tokens;
  int8_t* const weights = reinterpret_cast<int8_t*>(shared_memory);
  int8_t* const codes = weights + weight_bytes<T>(steps);
  let_next_start();
  cluster_arrive();
  if (warp == kMultiplyWarps) {
    serve(in, has_token, rank, cluster, shared);
    return;
  }

  const int first_pair = static_cast<int>(blockIdx.x) * T::kPairs;
  for (int row = warp; row < T::kRows; row += kMultiplyWarps) {
    const TileRow tile_row(row);
    const int pair = first_pair + tile_row.pair;
    if (pair >= op.pairs()) continue;
    const PairRows rows = op.rows(pair);
    const uint32_t* words = tile_row.which == 1 ? rows.words[1] : rows.words[0];
    if (words == nullptr) continue;
    for (int step = lane; step < steps; step += 32) {
      copy_async(weights + step * T::kWeightPlane + row * 16, words + 4 * step);
    }
  }
  // A thread finishes one result.
  static_assert(T::kPairs * kTokens <= kMultiplyThreads);
  const int token = t / T::kPairs;
  const int pair = first_pair + t % T::kPairs;
  const bool finishes = token < tokens && pair < op.pairs();
  typename Op::Place place{};
  float scale[2] = {};
  if (finishes) {
    const PairRows rows = op.rows(pair);
    scale[0] = rows.scale[0];
    scale[1] = rows.scale[1];
    place = op.place(token, pair);
  }
  float4 gain[kQuads] = {};
  if (has_token && in.gain != nullptr) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      gain[j] = four<true>(in.gain, 4 * (t + j * kMultiplyThreads), in.cols);
    }
  }

  wait_for_previous();
  if (finishes) op.fetch(place);
  cluster_wait();
  if (has_token) quantise_token<T, kQuads>(in, gain, rank, cluster, steps, codes, shared);
  wait_for_copies();
  cluster_release();
  cluster_wait();
  cluster_arrive();
  // For racecheck, to which the two halves apart are no barrier of the block's weights and codes.
  barrier_sync(kMultiplyBarrier, kMultiplyThreads);

  // Columns of tokens that do not exist are whatever was there; nobody reads their sums.
  WarpTile<T> tile;
  for (int step = warp; step < steps; step += kMultiplyWarps) {
    tile.add(weights + step * T::kWeightPlane, codes + step * T::kCodePlane);
  }
  barrier_sync(kMultiplyBarrier, kMultiplyThreads);  // all are done with the weights
  int* const sums = reinterpret_cast<int*>(weights);
  tile.write(sums + warp * T::kTokens * T::kSumStride);
  barrier_sync(kMultiplyBarrier, kMultiplyThreads);
  int a = 0;
  int b = 0;
  if (finishes) {
    const int* sum = sums + token * T::kSumStride + t % T::kPairs / 16 * 32 + t % 16;
#pragma unroll
    for (int w = 0; w < kMultiplyWarps; ++w) {
      a += sum[w * T::kTokens * T::kSumStride];
      b += sum[w * T::kTokens * T::kSumStride + 16];
    }
  }
  cluster_wait();
  if (!finishes) return;
  const RowScale row = shared.scale[token];
  op.finish(place, static_cast<float>(a - row.sum) * ((scale[0] / row.s) * row.r),
            static_cast<float>(b - row.sum) * ((scale[1] / row.s) * row.r));
}

template <class Op, int kRowTiles, int kQuads>
bool launch_few(const Input& in, const Op& op, int tokens, cudaStream_t stream) {
  using T = Tile<kRowTiles>;
  const auto kernel = few_rows_kernel<Op, kRowTiles, kQuads>;
  const size_t bytes = static_cast<size_t>(shared_bytes<T>(op.row_words / 4));
  static const bool has_clusters =
      room_for_clusters(kTokens, kernel, dim3(kBlockThreads), max_dynamic_shared());
  if (!has_clusters || bytes > max_dynamic_shared()) return false;
  const int cluster = tokens <= 2 ? 2 : tokens <= 4 ? 4 : 8;
  const int blocks = (op.pairs() + T::kPairs - 1) / T::kPairs;
  const dim3 grid(static_cast<unsigned>((blocks + cluster - 1) / cluster * cluster));
  launch_clusters(cluster, kernel, grid, dim3(kBlockThreads), bytes, stream, in, op, tokens,
                  cluster);
  return true;
}

template <class Op>
bool multiply(const Input& in, const Op& op, int tokens, cudaStream_t stream) {
  const bool vector = in.cols % 4 == 0 && reinterpret_cast<uintptr_t>(in.x) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(in.gain) % 16 == 0;
  const int quads = (4 * op.row_words + kMultiplyThreads - 1) / kMultiplyThreads;
  if (tokens < 2 || tokens > kTokens || !vector || quads > 6) return false;
  // Two blocks fit on an SM: more weight rows a block where there would be more than those.
  const bool many = op.pairs() > 16 * 2 * multiprocessors();
  if (quads <= 2) {
    return many ? launch_few<Op, 4, 2>(in, op, tokens, stream)
                : launch_few<Op, 2, 2>(in, op, tokens, stream);
  }
  return many ? launch_few<Op, 4, 6>(in, op, tokens, stream)
              : launch_few<Op, 2, 6>(in, op, tokens, stream);
}

}  // namespace

bool multiply_few_rows(const Input& in, const QkvOp& op, int rows, cudaStream_t stream) {
  return multiply(in, op, rows, stream);
}
bool multiply_few_rows(const Input& in, const ProjectOp& op, int rows, cudaStream_t stream) {
  return multiply(in, op, rows, stream);
}
bool multiply_few_rows(const Input& in, const FfnUpOp& op, int rows, cudaStream_t stream) {
  return multiply(in, op, rows, stream);
}

}  // namespace edgellm::cuda
