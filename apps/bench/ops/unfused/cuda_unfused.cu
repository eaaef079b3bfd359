#include <mma.h>

#include "apps/bench/ops/unfused/cuda_unfused.h"
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/quantise.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/ternary_dot.cuh"

namespace edgellm::bench {
namespace {

using namespace edgellm::cuda;
namespace wmma = nvcuda::wmma;

unsigned blocks_for(size_t n, size_t each) { return static_cast<unsigned>((n + each - 1) / each); }

// ---- Norm and quantisation: a block a row -------------------------------------------------------

// z = x * gain; r = 1 / sqrt(mean of squares + eps). The norm is folded: r is applied with the
// scales. Thread t keeps partial sum t of canonical_sum.
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const float* x, const float* gain, float eps, int cols, float* z, float* r) {
  __shared__ float partial[kPartials];
  let_next_start();
  wait_for_previous();
  const int t = static_cast<int>(threadIdx.x);
  const size_t begin = static_cast<size_t>(blockIdx.x) * static_cast<size_t>(cols);
  float squares = 0.0f;
#pragma unroll 8
  for (int c = t; c < cols; c += kThreads) {
    const float value = x[begin + static_cast<size_t>(c)];
    squares = fmaf(value, value, squares);
    z[begin + static_cast<size_t>(c)] = value * gain[c];
  }
  partial[t] = squares;
  __syncthreads();
  const float factor = rms_factor(fold_partials(partial), cols, eps);
  if (t == 0) r[blockIdx.x] = factor;
}

__global__ void __launch_bounds__(kThreads)
    quantise_kernel(const float* z, int cols, bool norm, int8_t* codes, float* s, int32_t* sum) {
  __shared__ uint32_t warp_max[kWarps];
  __shared__ int warp_sum[kWarps];
  let_next_start();
  wait_for_previous();
  const int t = static_cast<int>(threadIdx.x);
  const size_t row = blockIdx.x;
  const float4* values = reinterpret_cast<const float4*>(z + row * static_cast<size_t>(cols));
  uint32_t largest = 0;
#pragma unroll 4
  for (int i = t; i < cols / 4; i += kThreads) largest = max(largest, magnitude(values[i]));
  largest = max_warp(largest);
  if (t % 32 == 0) warp_max[t / 32] = largest;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) largest = max(largest, warp_max[w]);
  const RowFactors factors = row_factors(largest, norm);

  const int fours = (cols + 63) / 64 * 16;  // of codes, padding included
  uint32_t* const to = reinterpret_cast<uint32_t*>(codes) + row * static_cast<size_t>(fours);
  int own_sum = 0;
#pragma unroll 4
  for (int i = t; i < fours; i += kThreads) {
    uint32_t four_codes = 0;
    if (!factors.zero && i < cols / 4) four_codes = quantise(values[i], factors.s);
    own_sum = __dp4a(static_cast<int>(four_codes), 0x01010101, own_sum);
    to[i] = four_codes;
  }
  own_sum = sum_warp(own_sum);
  if (t % 32 == 0) warp_sum[t / 32] = own_sum;
  __syncthreads();
  if (t == 0) {
    int total = 0;
    for (int w = 0; w < kWarps; ++w) total += warp_sum[w];
    s[row] = factors.s;
    sum[row] = total;
  }
}

// ---- The product of one matrix ------------------------------------------------------------------

struct Quantised {
  const int8_t* codes;  // [tokens, steps * 64]
  const float* s;
  const float* r;  // null where there was no norm
  const int32_t* sum;
  int tokens;
};

struct Matrix {
  const uint32_t* words;  // [rows, steps * 4]
  const float* scale;
  bool scale_per_row;
  int rows;
  int steps;  // of 64 columns
};

__device__ inline float scaled(int dot, const Matrix& w, int row, const Quantised& x, int token) {
  const float r = x.r == nullptr ? 1.0f : x.r[token];
  const float scale = w.scale[w.scale_per_row ? row : 0];
  return static_cast<float>(dot - x.sum[token]) * ((scale / x.s[token]) * r);
}

constexpr int kSkinnyWarps = 4;  // small blocks: even 576 rows make enough of them for all SMs

// Skinny GEMM: up to eight tokens. A warp has kRows weight rows. A lane multiplies every 32nd word
// of them (16 columns) with 16 bytes of each token. The first words are fetched before the previous
// kernel has ended.
template <int kRows, int kTokens>
__global__ void __launch_bounds__(kSkinnyWarps * 32)
    skinny_kernel(Matrix w, Quantised x, float* y) {
  constexpr int kAhead = 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(blockIdx.x) * kSkinnyWarps + static_cast<int>(threadIdx.x) / 32;
  const int first_row = warp * kRows;
  const int n_words = 4 * w.steps;
  let_next_start();
  const uint32_t* rows[kRows];
  uint32_t ahead[kRows][kAhead];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows[i] = w.words +
              static_cast<size_t>(min(first_row + i, w.rows - 1)) * static_cast<size_t>(n_words);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      ahead[i][j] = lane + 32 * j < n_words ? rows[i][lane + 32 * j] : 0;
    }
  }
  wait_for_previous();

  const uint4* tokens[kTokens];
#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    tokens[n] = reinterpret_cast<const uint4*>(x.codes) +
                static_cast<size_t>(min(n, x.tokens - 1)) * static_cast<size_t>(n_words);
  }
  RowDot dot[kRows][kTokens];
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    // Where a row has fewer words, its weights are 0 and so are all products.
    const int word = min(lane + 32 * j, n_words - 1);
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      const uint4 codes = tokens[n][word];
#pragma unroll
      for (int i = 0; i < kRows; ++i) dot[i][n].add(ahead[i][j], codes);
    }
  }
#pragma unroll 4
  for (int word = lane + 32 * kAhead; word < n_words; word += 32) {
    uint32_t weights[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) weights[i] = rows[i][word];
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      const uint4 codes = tokens[n][word];
#pragma unroll
      for (int i = 0; i < kRows; ++i) dot[i][n].add(weights[i], codes);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      const int sum = sum_warp(dot[i][n].sum());
      const int row = first_row + i;
      if (lane == 0 && row < w.rows && n < x.tokens) {
        y[static_cast<size_t>(n) * static_cast<size_t>(w.rows) + static_cast<size_t>(row)] =
            scaled(sum, w, row, x, n);
      }
    }
  }
}

// GEMM: many tokens, on the int8 tensor cores. A block makes 64 weight rows x 64 tokens, a warp
// 32 x 32. While it multiplies the 64 columns of a step, the next step is on its way into
// registers.
constexpr int kTile = 64;
constexpr int kTileThreads = 128;
// The 64 columns of a step lie in planes of 16, [row][16 bytes]. The padding makes the planes begin
// in different banks, at multiples of 32 bytes, as wmma wants them.
constexpr int kPlane = 16 * kTile + 32;
constexpr int kPlanes = kTile / 16;
constexpr int kSumPitch = kTile + 4;  // int32

// A thread's share of the copies of every step: two words (32 columns) of one weight row, and 16
// columns of two tokens. Rows and tokens that do not exist repeat the last one.
struct StepCopies {
  const uint2* weights_from;
  const uint4* codes_from[2];
  uint2 weights;
  uint4 codes[2];

  __device__ StepCopies(const Matrix& w, const Quantised& x, int first_row, int first_token) {
    const int t = static_cast<int>(threadIdx.x);
    weights_from =
        reinterpret_cast<const uint2*>(w.words) +
        static_cast<size_t>(min(first_row + t / 2, w.rows - 1)) * static_cast<size_t>(2 * w.steps) +
        t % 2;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int token = min(first_token + (t + j * kTileThreads) / 4, x.tokens - 1);
      codes_from[j] = reinterpret_cast<const uint4*>(x.codes) +
                      static_cast<size_t>(token) * static_cast<size_t>(4 * w.steps) + t % 4;
    }
  }
  __device__ void fetch_weights(int step) { weights = weights_from[2 * step]; }
  __device__ void fetch_codes(int step) {
#pragma unroll
    for (int j = 0; j < 2; ++j) codes[j] = codes_from[j][4 * step];
  }
  // Into the planes of weights (w + 1) and of codes.
  __device__ void store(int8_t* weight_planes, int8_t* code_planes) const {
    const int t = static_cast<int>(threadIdx.x);
    const uint32_t words[2] = {weights.x, weights.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<uint4*>(weight_planes + (t % 2 * 2 + i) * kPlane + t / 2 * 16) =
          make_uint4(words[i] & 0x03030303u, words[i] >> 2 & 0x03030303u,
                     words[i] >> 4 & 0x03030303u, words[i] >> 6 & 0x03030303u);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      *reinterpret_cast<uint4*>(code_planes + t % 4 * kPlane + (t + j * kTileThreads) / 4 * 16) =
          codes[j];
    }
  }
};

// The 32 x 32 sums of a warp.
struct WarpSums {
  wmma::fragment<wmma::accumulator, 16, 16, 16, int> sums[2][2];

  __device__ WarpSums() {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) wmma::fill_fragment(sums[m][n], 0);
    }
  }
  // Adds a step. Both pointers are at the warp's first row or token of plane 0.
  __device__ void add(const int8_t* weight_planes, const int8_t* code_planes) {
#pragma unroll
    for (int k = 0; k < kPlanes; ++k) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> a[2];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> b[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        wmma::load_matrix_sync(a[i], weight_planes + k * kPlane + 16 * i * 16, 16);
        wmma::load_matrix_sync(b[i], code_planes + k * kPlane + 16 * i * 16, 16);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) wmma::mma_sync(sums[m][n], a[m], b[n], sums[m][n]);
      }
    }
  }
  // `to`: [token][row] at the warp's first token and row, kSumPitch apart.
  __device__ void store(int* to) const {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        wmma::store_matrix_sync(to + 16 * n * kSumPitch + 16 * m, sums[m][n], kSumPitch,
                                wmma::mem_col_major);
      }
    }
  }
};

__global__ void __launch_bounds__(kTileThreads) gemm_kernel(Matrix w, Quantised x, float* y) {
  // The planes of a step; at the end the sums, [token][row].
  __shared__ __align__(128) int8_t memory[kTile * kSumPitch * 4];
  static_assert(sizeof memory >= 2 * kPlanes * kPlane);
  int8_t* const weights = memory;
  int8_t* const codes = memory + kPlanes * kPlane;
  const int t = static_cast<int>(threadIdx.x);
  const int first_row = static_cast<int>(blockIdx.x) * kTile;
  const int first_token = static_cast<int>(blockIdx.y) * kTile;
  let_next_start();
  StepCopies next(w, x, first_row, first_token);
  next.fetch_weights(0);
  wait_for_previous();
  next.fetch_codes(0);

  const int warp_row = t / 32 % 2 * 32;
  const int warp_token = t / 64 * 32;
  WarpSums sums;
  for (int step = 0; step < w.steps; ++step) {
    next.store(weights, codes);
    __syncthreads();
    if (step + 1 < w.steps) {
      next.fetch_weights(step + 1);
      next.fetch_codes(step + 1);
    }
    sums.add(weights + warp_row * 16, codes + warp_token * 16);
    // Every warp is done with this step's columns before they are overwritten.
    __syncthreads();
  }

  int* const all_sums = reinterpret_cast<int*>(memory);
  sums.store(all_sums + warp_token * kSumPitch + warp_row);
  __syncthreads();
  for (int i = t; i < kTile * kTile; i += kTileThreads) {
    const int row = first_row + i % kTile;
    const int token = first_token + i / kTile;
    if (row < w.rows && token < x.tokens) {
      y[static_cast<size_t>(token) * static_cast<size_t>(w.rows) + static_cast<size_t>(row)] =
          scaled(all_sums[i / kTile * kSumPitch + i % kTile], w, row, x, token);
    }
  }
}

template <int kTokens>
void multiply_skinny(const Matrix& w, const Quantised& x, float* y, cudaStream_t stream) {
  const auto run = [&](auto kernel, int rows_of_warp) {
    launch(kernel,
           dim3(blocks_for(static_cast<size_t>(w.rows),
                           static_cast<size_t>(rows_of_warp * kSkinnyWarps))),
           dim3(kSkinnyWarps * 32), 0, stream, w, x, y);
  };
  // Two rows a warp share the loads of the codes where there are warps enough.
  if (w.rows >= 2048) {
    run(skinny_kernel<2, kTokens>, 2);
  } else {
    run(skinny_kernel<1, kTokens>, 1);
  }
}

void multiply(const TernaryMatrix& matrix, const Quantised& x, float* y, cudaStream_t stream) {
  const Matrix w{reinterpret_cast<const uint32_t*>(matrix.codes), matrix.scale,
                 matrix.n_scales != 1, matrix.rows, (matrix.cols + 63) / 64};
  if (x.tokens == 1) {
    multiply_skinny<1>(w, x, y, stream);
  } else if (x.tokens <= 8) {
    multiply_skinny<8>(w, x, y, stream);
  } else {
    launch(gemm_kernel,
           dim3(blocks_for(static_cast<size_t>(w.rows), kTile),
                blocks_for(static_cast<size_t>(x.tokens), kTile)),
           dim3(kTileThreads), 0, stream, w, x, y);
  }
}

// ---- What comes after the products --------------------------------------------------------------

// Rotates pairs (i, i + half) of every head of q and k, in place. Block y: the token.
__global__ void __launch_bounds__(kThreads)
    rope_kernel(float* q, float* k, int heads, int kv_heads, int half, const int32_t* positions,
                const float* cosines, const float* sines) {
  let_next_start();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= (heads + kv_heads) * half) return;
  const size_t token = blockIdx.y;
  const int head = i / half;
  const int d = i % half;
  const bool is_q = head < heads;
  float* const low =
      (is_q ? q + (token * static_cast<size_t>(heads) + static_cast<size_t>(head)) * 2 *
                      static_cast<size_t>(half)
            : k + (token * static_cast<size_t>(kv_heads) + static_cast<size_t>(head - heads)) * 2 *
                      static_cast<size_t>(half)) +
      d;
  const size_t angle =
      static_cast<size_t>(positions[token]) * static_cast<size_t>(half) + static_cast<size_t>(d);
  const float cosine = cosines[angle];
  const float sine = sines[angle];
  const float lo = low[0];
  const float hi = low[half];
  low[0] = lo * cosine - hi * sine;
  low[half] = hi * cosine + lo * sine;
}

__device__ inline float activate(GateActivation act, float g, float up) {
  if (act == GateActivation::kRelu2) {
    const float t = g > 0.0f ? g : 0.0f;
    return (t * t) * up;
  }
  return (g / (1.0f + canonical_exp(-g))) * up;
}

// u = act(gate) * up; `n`: fours of values.
__global__ void __launch_bounds__(kThreads)
    activation_kernel(const float4* gate, const float4* up, GateActivation act, float4* u,
                      size_t n) {
  let_next_start();
  wait_for_previous();
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float4 g = gate[i];
  const float4 v = up[i];
  u[i] = make_float4(activate(act, g.x, v.x), activate(act, g.y, v.y), activate(act, g.z, v.z),
                     activate(act, g.w, v.w));
}

// x += y; `n`: fours of values.
__global__ void __launch_bounds__(kThreads) add_kernel(const float4* y, float4* x, size_t n) {
  let_next_start();
  wait_for_previous();
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float4 a = x[i];
  const float4 b = y[i];
  x[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// ---- The chains ---------------------------------------------------------------------------------

Quantised quantise_rows(const float* x, const float* gain, float eps, int rows, int cols,
                        const UnfusedRows& between, cudaStream_t stream) {
  require(cols % 4 == 0, "the unfused chain takes rows of whole 16-byte words");
  const dim3 grid(static_cast<unsigned>(rows));
  const bool norm = gain != nullptr;
  if (norm) {
    launch(norm_kernel, grid, dim3(kThreads), 0, stream, x, gain, eps, cols, between.normed,
           between.rms);
  }
  launch(quantise_kernel, grid, dim3(kThreads), 0, stream, norm ? between.normed : x, cols, norm,
         between.codes, between.s, between.sum);
  return {between.codes, between.s, norm ? between.rms : nullptr, between.sum, rows};
}

}  // namespace

void unfused_qkv(const QkvArgs& args, const UnfusedRows& between, cudaStream_t stream) {
  const Quantised x =
      quantise_rows(args.x, args.gain, args.eps, args.rows, args.dim, between, stream);
  multiply(args.q, x, args.q_out, stream);
  multiply(args.k, x, args.k_out, stream);
  multiply(args.v, x, args.v_out, stream);
  const int half = args.head_dim / 2;
  const int heads = args.q.rows / args.head_dim;
  const int kv_heads = args.k.rows / args.head_dim;
  const size_t pairs = static_cast<size_t>((heads + kv_heads) * half);
  launch(rope_kernel, dim3(blocks_for(pairs, kThreads), static_cast<unsigned>(args.rows)),
         dim3(kThreads), 0, stream, args.q_out, args.k_out, heads, kv_heads, half, args.positions,
         args.rope_cos, args.rope_sin);
}

void unfused_project(const ProjectArgs& args, const UnfusedRows& between, cudaStream_t stream) {
  require(args.w.rows % 4 == 0, "the unfused chain takes rows of whole 16-byte words");
  const Quantised y =
      quantise_rows(args.y, args.gain, args.eps, args.rows, args.w.cols, between, stream);
  multiply(args.w, y, between.product, stream);
  const size_t fours = static_cast<size_t>(args.rows) * static_cast<size_t>(args.w.rows / 4);
  launch(add_kernel, dim3(blocks_for(fours, kThreads)), dim3(kThreads), 0, stream,
         reinterpret_cast<const float4*>(between.product), reinterpret_cast<float4*>(args.x),
         fours);
}

void unfused_ffn_up(const FfnUpArgs& args, const UnfusedRows& between, cudaStream_t stream) {
  require(args.gate.rows % 4 == 0, "the unfused chain takes rows of whole 16-byte words");
  const Quantised x =
      quantise_rows(args.x, args.gain, args.eps, args.rows, args.gate.cols, between, stream);
  multiply(args.gate, x, between.product, stream);
  multiply(args.up, x, between.other, stream);
  const size_t fours = static_cast<size_t>(args.rows) * static_cast<size_t>(args.gate.rows / 4);
  launch(activation_kernel, dim3(blocks_for(fours, kThreads)), dim3(kThreads), 0, stream,
         reinterpret_cast<const float4*>(between.product),
         reinterpret_cast<const float4*>(between.other), args.act,
         reinterpret_cast<float4*>(args.u), fours);
}

}  // namespace edgellm::bench
