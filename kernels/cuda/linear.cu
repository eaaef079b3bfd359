// qkv, attn_out, ffn_up and ffn_down for one activation row: decode. More rows: matmul.cu.
//
// A block owns a few pairs of output rows. It fetches their weights into shared memory before the
// previous kernel has ended; then its warps quantise the activation row (every block for itself:
// cheaper than another launch and a round trip), and each warp multiplies its rows and finishes
// them. What is needed only at the end, the RMS factor and the sum of the codes, is made by one
// more warp meanwhile.
//
// A kernel runs for a microsecond or two, and fetching its instructions and constants would take
// most of that time. So a block runs twice through its work: first, before the previous kernel has
// ended, a rehearsal on zeros that leaves them in the SM's caches. And the code is kept short, so
// that what one kernel has rehearsed is not displaced by the next: one kernel for all sizes, and
// loops that are not unrolled unless loads must overlap.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_ops.cuh"
#include "kernels/cuda/matmul.h"

namespace edgellm::cuda {
namespace {

struct Input {
  const float* x;     // [cols]
  const float* gain;  // [cols] or null
  float eps;
  int cols;
  int32_t* fault;
  int layer;
};

// Named barriers. The service warp takes part in the last two only: it waits for the codes, for
// which the others need not wait, and the others wait for its results.
constexpr int kMaxBarrier = 1;
constexpr int kCodesBarrier = 2;
constexpr int kCodesReadyBarrier = 3;
constexpr int kServiceBarrier = 4;

__device__ inline void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

constexpr int kMaxWarps = 16;       // that multiply
constexpr int kPreferredWarps = 10;  // fewer leave registers for the blocks of the next kernels
constexpr int kBatch = 4;           // loads of a thread that overlap

struct Shared {
  uint32_t max[kMaxWarps];
  float r;
  int32_t sum;
  float aside[kAside];
};

// Four columns of the row from `at` on, those beyond its end zero.
template <bool kVector>
__device__ inline float4 four(const float* row, int at, int cols) {
  if constexpr (kVector) {
    return at < cols ? *reinterpret_cast<const float4*>(row + at) : float4{};
  } else {
    return {at < cols ? row[at] : 0.0f, at + 1 < cols ? row[at + 1] : 0.0f,
            at + 2 < cols ? row[at + 2] : 0.0f, at + 3 < cols ? row[at + 3] : 0.0f};
  }
}

// canonical_sum of x * x by one warp. Lane l holds the partial sums 4 l .. 4 l + 3 and those 128
// further on. (Adding squares of absent columns, +0, changes nothing.)
template <bool kVector>
__device__ inline float sum_of_squares(const float* x, int n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float p[8] = {};
  if constexpr (kVector) {
    constexpr int kBatch = 5;  // loads that overlap
#pragma unroll 1
    for (int begin = 4 * lane; begin < n; begin += kBatch * kPartials) {
      float4 v[kBatch][2];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        v[j][0] = four<true>(x, begin + j * kPartials, n);
        v[j][1] = four<true>(x, begin + j * kPartials + 128, n);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          p[4 * i] = fmaf(v[j][i].x, v[j][i].x, p[4 * i]);
          p[4 * i + 1] = fmaf(v[j][i].y, v[j][i].y, p[4 * i + 1]);
          p[4 * i + 2] = fmaf(v[j][i].z, v[j][i].z, p[4 * i + 2]);
          p[4 * i + 3] = fmaf(v[j][i].w, v[j][i].w, p[4 * i + 3]);
        }
      }
    }
  } else {
    for (int begin = 0; begin < n; begin += kPartials) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int c = begin + 4 * lane + i % 4 + i / 4 * 128;
        if (c < n) p[i] = fmaf(x[c], x[c], p[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) p[i] += p[i + 4];
#pragma unroll
  for (int width = 16; width >= 1; width /= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] += __shfl_xor_sync(kAllLanes, p[i], width);
  }
  return ((p[0] + p[2]) + (p[1] + p[3])) + 0.0f;
}

// Four codes, the first in the lowest byte. |z * s| stays below 127.5 (s is 127 over the largest
// |z|, within two roundings), so the sum's low byte is the rounded value and needs no clamp.
__device__ inline uint32_t quantise(float4 z, float s) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const uint32_t a = __float_as_uint(z.x * s + kRound);
  const uint32_t b = __float_as_uint(z.y * s + kRound);
  const uint32_t c = __float_as_uint(z.z * s + kRound);
  const uint32_t d = __float_as_uint(z.w * s + kRound);
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// The magnitude's bits: their order is that of the magnitudes, with infinity and NaN above all.
__device__ inline uint32_t magnitude(float z) { return __float_as_uint(z) & 0x7fffffffu; }

// The scalars of the row that every thread knows.
struct RowFactors {
  float s;    // codes per unit
  bool zero;  // all codes are 0
};

__device__ inline RowFactors factors_of(uint32_t amax_bits, bool has_gain) {
  const float amax = __uint_as_float(amax_bits);
  const bool zero = amax_bits >= 0x7f800000u || (has_gain && amax_bits == 0);
  const float s = (1.0f / fmaxf(amax, has_gain ? 1e-30f : 1e-5f)) * 127.0f;
  return {zero ? 1.0f : s, zero};
}

// How a block shares its work. Columns go by fours, quads.
struct Cut {
  int n_warps;         // that multiply
  int pairs_per_warp;  // at most 32: lane i finishes pair i
};

// kVector: the activation row can be read 16 bytes at a time.
template <class Op, bool kVector>
__global__ void __launch_bounds__((kMaxWarps + 1) * 32, 2) row_kernel(Input input, Op op, Cut cut) {
  // The row's codes, its values times gain (first only the gains), the weights of each warp's rows.
  extern __shared__ uint4 memory[];
  __shared__ Shared shared;
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const int threads = cut.n_warps * 32;
  const int all_words = words_per_row(input.cols);
  const int all_quads = 4 * all_words;
  const bool has_gain = input.gain != nullptr;
  let_next_start();

  if (warp == cut.n_warps) {
    // The service warp.
#pragma unroll 1
    for (int run = 0; run < 2; ++run) {
      const bool rehearsal = run == 0;
      if (!rehearsal) wait_for_previous();
      float r = 1.0f;
      if (has_gain) {
        const float* x = rehearsal ? input.gain : input.x;
        const int cols = rehearsal ? min(input.cols, kPartials) : input.cols;
        r = rms_factor(sum_of_squares<kVector>(x, cols), input.cols, input.eps);
      }
      barrier_sync(kCodesReadyBarrier, threads + 32);
      int sum = 0;
#pragma unroll 1
      for (int w = lane; w < (rehearsal ? min(32, all_words) : all_words); w += 32) {
        const uint4 codes = memory[w];
        sum = __dp4a(static_cast<int>(codes.x), 0x01010101, sum);
        sum = __dp4a(static_cast<int>(codes.y), 0x01010101, sum);
        sum = __dp4a(static_cast<int>(codes.z), 0x01010101, sum);
        sum = __dp4a(static_cast<int>(codes.w), 0x01010101, sum);
      }
      sum = sum_warp(sum);
      if (lane == 0) {
        shared.r = r;
        shared.sum = sum;
      }
      barrier_arrive(kServiceBarrier, threads + 32);
    }
    return;
  }

  float4* const z = reinterpret_cast<float4*>(memory + all_words);
  uint32_t* const weights = reinterpret_cast<uint32_t*>(memory + all_words + all_quads) +
                            warp * cut.pairs_per_warp * 2 * all_words;
  const int first_pair =
      (static_cast<int>(blockIdx.x) * cut.n_warps + warp) * cut.pairs_per_warp;
  const int own_pairs = min(cut.pairs_per_warp, op.pairs() - first_pair);
  if (has_gain && kVector) {
#pragma unroll 1
    for (int quad = t; 4 * quad < input.cols; quad += threads) {
      copy_async(z + quad, input.gain + 4 * quad);
    }
  }
  end_of_copies();
#pragma unroll 1
  for (int p = 0; p < own_pairs; ++p) {
    const PairRows rows = op.rows(first_pair + p);
    const uint32_t* second = rows.words[1] != nullptr ? rows.words[1] : rows.words[0];
    uint4* to = reinterpret_cast<uint4*>(weights + 2 * p * all_words);
#pragma unroll 1
    for (int w = lane; w < all_words / 4; w += 32) {
      copy_async(to + w, reinterpret_cast<const uint4*>(rows.words[0]) + w);
      copy_async(to + all_words / 4 + w, reinterpret_cast<const uint4*>(second) + w);
    }
  }
  end_of_copies();
  const bool finishes = lane < own_pairs;
  float scale[2] = {};
  typename Op::Place place{};
  if (finishes) {
    const PairRows rows = op.rows(first_pair + lane);
    scale[0] = rows.scale[0];
    scale[1] = rows.scale[1];
    place = op.place(0, first_pair + lane);
  }

#pragma unroll 1
  for (int run = 0; run < 2; ++run) {
    const bool rehearsal = run == 0;
    // A rehearsal goes once through every loop. It reads no input, and no shared memory that copies
    // are still on their way to.
    const int cols = rehearsal ? 0 : input.cols;
    const int n_quads = rehearsal ? min(threads, all_quads) : all_quads;
    const int n_words = rehearsal ? min(32, all_words) : all_words;
    const int n_pairs = rehearsal ? min(own_pairs, 1) : own_pairs;
    if (!rehearsal) {
      wait_for_previous();
      if (finishes) op.fetch(place);
      wait_for_older_copies();  // the gains
    }
    uint32_t largest = 0;
#pragma unroll 1
    for (int begin = t; begin < n_quads; begin += kBatch * threads) {
      float4 v[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        v[j] = four<kVector>(input.x, 4 * (begin + j * threads), cols);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int quad = begin + j * threads;
        if (quad >= n_quads) break;
        if (has_gain && 4 * quad < cols) {
          const float4 gain = kVector ? z[quad] : four<false>(input.gain, 4 * quad, cols);
          v[j] = {v[j].x * gain.x, v[j].y * gain.y, v[j].z * gain.z, v[j].w * gain.w};
        }
        largest = max(largest, max(max(magnitude(v[j].x), magnitude(v[j].y)),
                                   max(magnitude(v[j].z), magnitude(v[j].w))));
        if (!rehearsal) z[quad] = v[j];
      }
    }
    largest = max_warp(largest);
    if (lane == 0) shared.max[warp] = largest;
    barrier_sync(kMaxBarrier, threads);
    largest = max_warp(shared.max[lane < cut.n_warps ? lane : 0]);
    const RowFactors factors = factors_of(largest, has_gain);
    if (largest >= 0x7f800000u && t == 0) set_fault(input.fault, input.layer + 1);

    uint32_t* const codes = reinterpret_cast<uint32_t*>(memory);
#pragma unroll 1
    for (int quad = t; quad < n_quads; quad += threads) {
      const float4 v = rehearsal ? float4{} : z[quad];
      codes[quad] = factors.zero ? 0 : quantise(v, factors.s);
    }
    barrier_arrive(kCodesReadyBarrier, threads + 32);
    if (!rehearsal) wait_for_copies();
    barrier_sync(kCodesBarrier, threads);

    int own[2] = {};
#pragma unroll 1
    for (int p = 0; p < n_pairs; ++p) {
      const uint32_t* row = weights + 2 * p * all_words;
      RowDot first;
      RowDot second;
#pragma unroll 2
      for (int w = lane; w < n_words; w += 32) {
        const uint4 x = memory[w];
        first.add(rehearsal ? 0 : row[w], x);
        second.add(rehearsal ? 0 : row[all_words + w], x);
      }
      const int sums[2] = {sum_warp(first.sum()), sum_warp(second.sum())};
      if (p == lane) {
        own[0] = sums[0];
        own[1] = sums[1];
      }
    }
    const float per_unit[2] = {scale[0] / factors.s, scale[1] / factors.s};
    barrier_sync(kServiceBarrier, threads + 32);
    if (!finishes) continue;
    op.finish(rehearsal ? op.aside(place, shared.aside) : place,
              static_cast<float>(own[0] - shared.sum) * (per_unit[0] * shared.r),
              static_cast<float>(own[1] - shared.sum) * (per_unit[1] * shared.r));
  }
}

size_t shared_bytes(int cols, const Cut& cut) {
  const size_t words = static_cast<size_t>(words_per_row(cols));
  return 16 * words + 64 * words +
         8 * words * static_cast<size_t>(cut.n_warps * cut.pairs_per_warp);
}

// One block for each SM as far as shared memory goes, with warps enough to quantise the row.
Cut cut_for(int pairs, int cols) {
  const int blocks = multiprocessors();
  const int per_block = (pairs + blocks - 1) / blocks;
  const int warps_of_quads = (cols / 4 + 31) / 32;
  Cut cut{};
  cut.pairs_per_warp = std::min(32, (per_block + kPreferredWarps - 1) / kPreferredWarps);
  cut.n_warps = (per_block + cut.pairs_per_warp - 1) / cut.pairs_per_warp;
  cut.n_warps = std::max(cut.n_warps, std::min(warps_of_quads, kPreferredWarps));
  cut.n_warps = std::min(cut.n_warps, kMaxWarps);
  while (shared_bytes(cols, cut) > max_dynamic_shared() && cut.pairs_per_warp > 1) {
    --cut.pairs_per_warp;
  }
  while (shared_bytes(cols, cut) > max_dynamic_shared() && cut.n_warps > 1) --cut.n_warps;
  return cut;
}

template <class Op>
void multiply_row(const Input& input, const Op& op, cudaStream_t stream) {
  const Cut cut = cut_for(op.pairs(), input.cols);
  const int per_block = cut.n_warps * cut.pairs_per_warp;
  const dim3 grid(static_cast<unsigned>((op.pairs() + per_block - 1) / per_block));
  const dim3 block(static_cast<unsigned>((cut.n_warps + 1) * 32));
  const size_t bytes = shared_bytes(input.cols, cut);
  if (input.cols % 4 == 0) {
    launch(row_kernel<Op, true>, grid, block, bytes, stream, input, op, cut);
  } else {
    launch(row_kernel<Op, false>, grid, block, bytes, stream, input, op, cut);
  }
}

void project(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (args.rows > 1) {
    project_rows(args, workspace, stream);
    return;
  }
  multiply_row(
      Input{args.y, args.gain, args.eps, args.w.cols, args.fault, args.layer},
      ProjectOp{args.w, words_per_row(args.w.cols), args.x, args.fault, args.layer}, stream);
}

}  // namespace

void qkv(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (args.rows > 1) {
    qkv_rows(args, workspace, stream);
    return;
  }
  multiply_row(Input{args.x, args.gain, args.eps, args.dim, args.fault, args.layer},
               QkvOp{args.q, args.k, args.v, words_per_row(args.dim), args.rope_cos, args.rope_sin,
                     args.places, args.q_out, args.kv},
               stream);
}

void attn_out(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  project(args, workspace, stream);
}

void ffn_up(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream) {
  if (args.rows > 1) {
    ffn_up_rows(args, workspace, stream);
    return;
  }
  multiply_row(
      Input{args.x, args.gain, args.eps, args.gate.cols, args.fault, args.layer},
      FfnUpOp{args.gate, args.up, words_per_row(args.gate.cols), args.act, args.u}, stream);
}

void ffn_down(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  project(args, workspace, stream);
}

}  // namespace edgellm::cuda
