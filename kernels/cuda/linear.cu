// qkv, attn_out, ffn_up and ffn_down for one activation row: decode. More rows: matmul.cu.
//
// A block owns a few pairs of output rows. It fetches their weights into shared memory before the
// previous kernel has ended; then its warps quantise the activation row (every block for itself:
// cheaper than another launch and a round trip), and each warp multiplies its rows and finishes
// them. What is needed only at the end, the RMS factor and the sum of the codes, is made by one
// more warp meanwhile.
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

constexpr int kMaxWarps = 16;  // that multiply

struct Shared {
  uint32_t max[kMaxWarps];
  float r;
  int32_t sum;
  float aside[kAside];
};

// canonical_sum of x * x by one warp. Lane l holds the partial sums 4 l .. 4 l + 3 and those 128
// further on.
__device__ inline float sum_of_squares(const float* x, int n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float p[8] = {};
  if (n % 4 == 0) {
#pragma unroll 5
    for (int begin = 4 * lane; begin < n; begin += kPartials) {
      const float4 low = *reinterpret_cast<const float4*>(x + begin);
      float4 high = {0.0f, 0.0f, 0.0f, 0.0f};
      if (begin + 128 < n) high = *reinterpret_cast<const float4*>(x + begin + 128);
      p[0] = fmaf(low.x, low.x, p[0]);
      p[1] = fmaf(low.y, low.y, p[1]);
      p[2] = fmaf(low.z, low.z, p[2]);
      p[3] = fmaf(low.w, low.w, p[3]);
      p[4] = fmaf(high.x, high.x, p[4]);
      p[5] = fmaf(high.y, high.y, p[5]);
      p[6] = fmaf(high.z, high.z, p[6]);
      p[7] = fmaf(high.w, high.w, p[7]);
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

__device__ inline float4 product(float4 a, float4 b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}

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

// kPairs: pairs of rows of a warp. kQuads: how many times four columns of the activation row a
// thread keeps in registers; of longer rows it reads the rest twice. kVector: the activation row
// can be read 16 bytes at a time.
//
// The block runs twice through its work. The first time is a rehearsal on zeros, before the
// previous kernel has ended, which leaves the instructions and constants in the caches: these
// kernels are so short that fetching their code would otherwise take most of their time.
template <class Op, int kPairs, int kQuads, bool kVector>
__global__ void __launch_bounds__((kMaxWarps + 1) * 32)
    row_kernel(Input input, Op op, int n_warps) {
  // The row's codes, the weights of each warp's rows, the gains of the columns that are kept.
  extern __shared__ uint4 memory[];
  __shared__ Shared shared;
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const int threads = n_warps * 32;
  const int n_words = words_per_row(input.cols);
  const bool has_gain = input.gain != nullptr;
  let_next_start();

  if (warp == n_warps) {
    // The service warp.
#pragma unroll 1
    for (int run = 0; run < 2; ++run) {
      const bool rehearsal = run == 0;
      if (!rehearsal) wait_for_previous();
      float r = 1.0f;
      if (has_gain) {
        r = rms_factor(sum_of_squares(input.x, rehearsal ? 0 : input.cols), input.cols, input.eps);
      }
      barrier_sync(kCodesReadyBarrier, threads + 32);
      int sum = 0;
      for (int w = lane; w < n_words; w += 32) {
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

  const int first_pair = (static_cast<int>(blockIdx.x) * n_warps + warp) * kPairs;
  // Lane i finishes pair i of the warp.
  const int own_pair = first_pair + lane;
  const bool finishes = lane < kPairs && own_pair < op.pairs();
  uint4* const own_memory = memory + n_words + warp * (2 * kPairs * n_words / 4);
  float4* const own_gain =
      reinterpret_cast<float4*>(memory + n_words + n_warps * (2 * kPairs * n_words / 4)) + t;
  if (has_gain) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int quad = t + j * threads;
      if (4 * quad < input.cols) {
        copy_async(own_gain + j * threads, input.gain + 4 * quad);
      }
    }
  }
  end_of_copies();
  float scale[2] = {};
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const PairRows rows = op.rows(min(first_pair + p, op.pairs() - 1));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4* from = reinterpret_cast<const uint4*>(rows.words[i] != nullptr ? rows.words[i]
                                                                                  : rows.words[0]);
      uint4* to = own_memory + (2 * p + i) * (n_words / 4);
      for (int w = lane; w < n_words / 4; w += 32) copy_async(to + w, from + w);
      if (p == lane) scale[i] = rows.scale[i];
    }
  }
  end_of_copies();
  typename Op::Place place{};
  if (finishes) place = op.place(0, own_pair);

#pragma unroll 1
  for (int run = 0; run < 2; ++run) {
    const bool rehearsal = run == 0;
    if (!rehearsal) wait_for_previous();
    const int cols = rehearsal ? 0 : input.cols;
    float4 z[kQuads > 0 ? kQuads : 1];
#pragma unroll
    for (int j = 0; j < kQuads; ++j) z[j] = four<kVector>(input.x, 4 * (t + j * threads), cols);
    if (finishes && !rehearsal) op.fetch(place);
    uint32_t largest = 0;
    const auto measure = [&](float4 v) {
      largest = max(largest, max(max(magnitude(v.x), magnitude(v.y)),
                                 max(magnitude(v.z), magnitude(v.w))));
    };
    // The columns that were not kept.
    const auto remaining = [&](int at) {
      const float4 v = four<kVector>(input.x, at, cols);
      return has_gain ? product(v, four<kVector>(input.gain, at, cols)) : v;
    };
    if (!rehearsal) wait_for_older_copies();  // the gains
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      // A rehearsal does not touch what may still be on its way.
      if (has_gain && 4 * (t + j * threads) < cols) z[j] = product(z[j], own_gain[j * threads]);
      measure(z[j]);
    }
#pragma unroll 4
    for (int at = 4 * (t + kQuads * threads); at < cols; at += 4 * threads) measure(remaining(at));
    largest = max_warp(largest);
    if (lane == 0) shared.max[warp] = largest;
    barrier_sync(kMaxBarrier, threads);
    largest = max_warp(shared.max[lane < n_warps ? lane : 0]);
    const RowFactors factors = factors_of(largest, has_gain);
    if (largest >= 0x7f800000u && t == 0) set_fault(input.fault, input.layer + 1);

    uint32_t* codes = reinterpret_cast<uint32_t*>(memory);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int quad = t + j * threads;
      if (quad < 4 * n_words) codes[quad] = factors.zero ? 0 : quantise(z[j], factors.s);
    }
#pragma unroll 4
    for (int quad = t + kQuads * threads; quad < 4 * n_words; quad += threads) {
      codes[quad] = factors.zero ? 0 : quantise(remaining(4 * quad), factors.s);
    }
    barrier_arrive(kCodesReadyBarrier, threads + 32);
    const float per_unit[2] = {scale[0] / factors.s, scale[1] / factors.s};
    if (!rehearsal) wait_for_copies();
    barrier_sync(kCodesBarrier, threads);

    RowDot dot[kPairs][2];
    const uint32_t* weights = reinterpret_cast<const uint32_t*>(own_memory);
#pragma unroll 2
    for (int w = lane; w < n_words; w += 32) {
      const uint4 x = memory[w];
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        dot[p][0].add(rehearsal ? 0 : weights[2 * p * n_words + w], x);
        dot[p][1].add(rehearsal ? 0 : weights[(2 * p + 1) * n_words + w], x);
      }
    }
    int own[2] = {};
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int sum = sum_warp(dot[p][i].sum());
        if (p == lane) own[i] = sum;
      }
    }
    barrier_sync(kServiceBarrier, threads + 32);
    if (!finishes) continue;
    op.finish(rehearsal ? op.aside(place, shared.aside) : place,
              static_cast<float>(own[0] - shared.sum) * (per_unit[0] * shared.r),
              static_cast<float>(own[1] - shared.sum) * (per_unit[1] * shared.r));
  }
}

template <int kPairs>
size_t shared_bytes(const Input& input, int n_warps, int quads) {
  const size_t words = static_cast<size_t>(words_per_row(input.cols));
  const size_t gains = input.gain == nullptr ? 0 : static_cast<size_t>(quads * n_warps * 32);
  return 16 * words + static_cast<size_t>(2 * kPairs * n_warps) * words * 4 + 16 * gains;
}

template <int kPairs, int kQuads, bool kVector, class Op>
void launch_row(const Input& input, const Op& op, int n_warps, cudaStream_t stream) {
  const int per_block = n_warps * kPairs;
  launch(row_kernel<Op, kPairs, kQuads, kVector>,
         dim3(static_cast<unsigned>((op.pairs() + per_block - 1) / per_block)),
         dim3(static_cast<unsigned>((n_warps + 1) * 32)),
         shared_bytes<kPairs>(input, n_warps, kQuads), stream, input, op, n_warps);
}

template <int kPairs, class Op>
void launch_pairs(const Input& input, const Op& op, cudaStream_t stream) {
  // One block for each SM, as far as its shared memory goes.
  constexpr int kMostQuads = 6;
  const int blocks = multiprocessors();
  int n_warps = std::min(kMaxWarps, (op.pairs() + blocks * kPairs - 1) / (blocks * kPairs));
  while (n_warps > 1 && shared_bytes<kPairs>(input, n_warps, kMostQuads) > max_dynamic_shared()) {
    --n_warps;
  }
  if (input.cols % 4 != 0) {
    launch_row<kPairs, 0, false>(input, op, n_warps, stream);
    return;
  }
  // Short rows: some warps may have no rows and only help to quantise.
  const int warps_of_quads = (input.cols / 4 + 31) / 32;
  if (warps_of_quads <= 5) n_warps = std::max(n_warps, warps_of_quads);
  if (warps_of_quads <= 12) n_warps = std::max(n_warps, (warps_of_quads + 1) / 2);
  const int quads = (warps_of_quads + n_warps - 1) / n_warps;
  if (quads <= 1) {
    launch_row<kPairs, 1, true>(input, op, n_warps, stream);
  } else if (quads <= 2) {
    launch_row<kPairs, 2, true>(input, op, n_warps, stream);
  } else if (quads <= 4) {
    launch_row<kPairs, 4, true>(input, op, n_warps, stream);
  } else {
    launch_row<kPairs, kMostQuads, true>(input, op, n_warps, stream);
  }
}

// Pairs a warp: with more, a block has fewer threads, and the blocks of the kernels that come next
// find registers to start early; long rows want the threads to quantise.
template <class Op>
void multiply_row(const Input& input, const Op& op, cudaStream_t stream) {
  const int per_sm = (op.pairs() + multiprocessors() - 1) / multiprocessors();
  if (per_sm <= 8 || (per_sm <= kMaxWarps && input.cols > 4096)) {
    launch_pairs<1>(input, op, stream);
  } else if (per_sm <= 2 * kMaxWarps) {
    launch_pairs<2>(input, op, stream);
  } else {
    launch_pairs<4>(input, op, stream);
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
