// qkv, attn_out, ffn_up and ffn_down for one activation row: decode. More rows: gemm_skinny.cu,
// gemm.cu.
//
// A block owns a few pairs of output rows. It fetches their weights before the previous kernel has
// ended. Then its warps quantise the activation row (every block for itself: that is cheaper than
// another launch and a round trip), and each warp multiplies its rows and stores the results.
// Meanwhile one more warp, the service warp, makes what is needed only at the end: the RMS factor
// and the sum of the codes.
//
// A kernel runs for a microsecond or two, and fetching its instructions and constants would take
// most of that time. So one warp of each kind does its work twice. The first time is a warm-up,
// before the previous kernel has ended: alone, on zeros and without barriers, it brings them into
// the SM's caches. The code is kept short, so that one kernel's warm-up does not displace the next
// one's: one kernel for all sizes, and loops are unrolled only where loads must overlap.
#include <utility>

#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/ternary_dot.cuh"
#include "kernels/cuda/linear_kernels.cuh"

namespace edgellm::cuda {
namespace {

// Named barriers. The service warp takes part in the last two only. It waits for the codes, for
// which the others need not wait; the others wait for its results.
constexpr int kMaxBarrier = 1;
constexpr int kCodesBarrier = 2;
constexpr int kCodesReadyBarrier = 3;
constexpr int kServiceBarrier = 4;

constexpr int kMaxPairs = 4;  // of rows, of a warp whose weights are in registers
constexpr int kBatch = 4;     // loads of a thread that overlap

struct GemvShared {
  uint32_t max[kMaxGemvWarps];
  float r;
  int32_t sum;
  float warm_up_r;  // where a warm-up's results go
  float discarded[kMaxPairs][kRedirectFloats];
};

// By all warps that multiply, or by warp 0 in a warm-up. `largest`: the greatest magnitude that the
// thread has seen.
__device__ inline RowFactors factors_of(uint32_t largest, const Input& input, int warp, int lane,
                                        int n_warps, bool warm_up, GemvShared& shared) {
  largest = max_warp(largest);
  if (lane == 0) shared.max[warp] = largest;
  if (!warm_up) barrier_sync(kMaxBarrier, n_warps * 32);
  largest = max_warp(warm_up ? largest : shared.max[lane < n_warps ? lane : 0]);
  const RowFactors factors = row_factors(largest, input.gain != nullptr);
  if (!factors.finite && threadIdx.x == 0) set_fault(input.fault, input.layer + 1);
  return factors;
}

// canonical_sum of x * x by one warp. Lane l holds the partial sums 4 l .. 4 l + 3 and those 128
// further on. (Adding squares of absent columns, +0, changes nothing.)
template <bool kVector>
__device__ inline float sum_of_squares(const float* x, int n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float p[8] = {};
  if constexpr (kVector) {
    constexpr int kRounds = 5;  // whose loads overlap
#pragma unroll 1
    for (int begin = 4 * lane; begin < n; begin += kRounds * kPartials) {
      float4 v[kRounds][2];
#pragma unroll
      for (int j = 0; j < kRounds; ++j) {
        v[j][0] = four<true>(x, begin + j * kPartials, n);
        v[j][1] = four<true>(x, begin + j * kPartials + 128, n);
      }
#pragma unroll
      for (int j = 0; j < kRounds; ++j) {
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
  return fold_fours(p);
}

// The service warp's part: the RMS factor and the sum of the codes.
template <bool kVector>
__device__ void serve(const Input& input, const uint4* codes, int threads, int n_words,
                      bool warms_up, GemvShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int run = warms_up ? 0 : 1; run < 2; ++run) {
    const bool warm_up = run == 0;
    if (!warm_up) wait_for_previous();
    float r = 1.0f;
    if (input.gain != nullptr) {
      const float* x = warm_up ? input.gain : input.x;
      const int cols = warm_up ? min(input.cols, kPartials) : input.cols;
      r = rms_factor(sum_of_squares<kVector>(x, cols), input.cols, input.eps);
    }
    if (warm_up) {
      if (lane == 0) shared.warm_up_r = r;
      continue;
    }
    barrier_sync(kCodesReadyBarrier, threads + 32);
    int sum = 0;
#pragma unroll 1
    for (int w = lane; w < n_words; w += 32) {
      const uint4 word = codes[w];
      sum = __dp4a(static_cast<int>(word.x), 0x01010101, sum);
      sum = __dp4a(static_cast<int>(word.y), 0x01010101, sum);
      sum = __dp4a(static_cast<int>(word.z), 0x01010101, sum);
      sum = __dp4a(static_cast<int>(word.w), 0x01010101, sum);
    }
    sum = sum_warp(sum);
    if (lane == 0) {
      shared.r = r;
      shared.sum = sum;
    }
    barrier_arrive(kServiceBarrier, threads + 32);
  }
}

// Threads that a kernel declares: more than it has, so that it gets no more registers than leave
// room for blocks of the kernels before and after it on the same SM (65,536 in all, given out for
// every four warps): 64 or 80 a thread.
constexpr int bound_for(int pairs) { return pairs == 1 ? 1024 : 768; }

// The weights of a warp's pairs: row i is row i % 2 of pair i / 2. Those of long rows wait in
// shared memory, [2 kPairs][n_words]; of others a lane holds words lane, lane + 32, ...
template <int kSteps, int kPairs>
struct WarpWeights {
  static constexpr bool kShared = short_gemv_shares_weights(kSteps);
  uint32_t words[2 * kPairs][kShared ? 1 : kSteps];

  // Lane i has the rows of pair i.
  __device__ __forceinline__ void fetch(const PairRows& rows, int lane, int n_words,
                                        uint4* shared) {
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      const uint32_t* row = reinterpret_cast<const uint32_t*>(
          __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(rows.words[i % 2]), i / 2));
      if constexpr (kShared) {
        for (int w = lane; w < n_words / 4; w += 32) {
          copy_async(shared + i * (n_words / 4) + w, row + 4 * w);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kSteps; ++j) {
          const int w = lane + 32 * j;
          words[i][j] = w < n_words ? row[w] : 0;
        }
      }
    }
  }

  // The products with the row's codes, those of pair i in lane i. A warm-up takes zeros for codes,
  // where weights are in registers: it has no barrier behind which it could read the codes. kPin:
  // weights are not to be unpacked ahead of the loop, there are no registers for it.
  template <bool kPin>
  __device__ __forceinline__ void multiply(const uint4* codes, int lane, int n_words, bool warm_up,
                                           const uint4* shared, int (&own)[2]) {
    RowDot dot[2 * kPairs];
    if constexpr (kShared) {
      const uint32_t* row = reinterpret_cast<const uint32_t*>(shared);
#pragma unroll 4
      for (int w = lane; w < n_words; w += 32) {
        const uint4 x = codes[w];
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i) dot[i].add(row[i * n_words + w], x);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        // Where a row has fewer words, its weights are 0 and so are all products.
        uint4 x{};
        if (!warm_up) x = codes[min(lane + 32 * j, n_words - 1)];
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i) {
          if (kPin) asm volatile("" : "+r"(words[i][j]));
          dot[i].add(words[i][j], x);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      const int sum = sum_warp(dot[i].sum());
      if (i / 2 == lane) own[i % 2] = sum;
    }
  }
};

// The usual sizes: all that a thread needs of weights and activations fits in registers (weights of
// long rows wait in shared memory), and all loops are unrolled. kSteps: words of a weight row that
// a lane holds, w, w + 32, ...; kPairs: pairs of rows of a warp; kQuads: fours of columns that a
// thread quantises.
//
// Item i is pairs i * n_warps * kPairs and up, for n_warps warps that multiply and one that serves
// them. `memory`: the row's codes, gains, weights of long rows.
template <class Op, int kSteps, int kPairs, int kQuads>
__device__ __forceinline__ void short_gemv(const Input& input, const Op& op, int n_warps, int item,
                                           uint4* memory) {
  // A warm-up pays where there is time for it: not for long rows. With many rows a warp it stops
  // where it would need their weights, which may not be there yet.
  constexpr bool kWarmsUp = kStartsEarly && kSteps <= 5;
  constexpr bool kWarmsUpProducts = kPairs <= 2;
  static_assert(kPairs <= kMaxPairs);
  __shared__ GemvShared shared;
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const int threads = n_warps * 32;
  const int n_words = words_per_row(input.cols);
  const bool has_gain = input.gain != nullptr;
  let_next_start();
  if (warp == n_warps) {
    serve<true>(input, memory, threads, n_words, kWarmsUp, shared);
    return;
  }

  const int first_pair = (item * n_warps + warp) * kPairs;
  // Lane i knows pair i of the warp and stores it.
  const int own_pair = first_pair + lane;
  const bool stores = lane < kPairs && own_pair < op.pairs();
  PairRows rows{};
  if (lane < kPairs) rows = op.rows(min(own_pair, op.pairs() - 1));
  if (rows.words[1] == nullptr) rows.words[1] = rows.words[0];
  float4* const own_gain = reinterpret_cast<float4*>(memory + n_words) + t;
  uint4* const shared_weights =
      memory + n_words + (has_gain ? kQuads * threads : 0) + warp * 2 * kPairs * (n_words / 4);
  WarpWeights<kSteps, kPairs> weights;
  weights.fetch(rows, lane, n_words, shared_weights);
  if (has_gain) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int quad = t + j * threads;
      if (4 * quad < input.cols) copy_async(own_gain + j * threads, input.gain + 4 * quad);
    }
  }
  typename Op::Target target{};
  if (stores) target = op.locate(0, own_pair);

#pragma unroll 1
  for (int run = kWarmsUp && warp == 0 ? 0 : 1; run < 2; ++run) {
    const bool warm_up = run == 0;
    const int cols = warm_up ? 0 : input.cols;
    if (!warm_up) wait_for_previous();
    float4 z[kQuads];
#pragma unroll
    for (int j = 0; j < kQuads; ++j) z[j] = four<true>(input.x, 4 * (t + j * threads), cols);
    if (!warm_up) {
      if (stores) op.prefetch(target);
      wait_for_copies();  // the gains
    }
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      if (has_gain && 4 * (t + j * threads) < cols) z[j] = product(z[j], own_gain[j * threads]);
      largest = max(largest, magnitude(z[j]));
    }
    const RowFactors factors = factors_of(largest, input, warp, lane, n_warps, warm_up, shared);
    uint32_t* const codes = reinterpret_cast<uint32_t*>(memory);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int quad = t + j * threads;
      if (quad < 4 * n_words) codes[quad] = factors.zero ? 0 : quantise(z[j], factors.s);
    }
    const float per_unit[2] = {rows.scale[0] / factors.s, rows.scale[1] / factors.s};
    if (!warm_up) {
      barrier_sync(kCodesBarrier, threads);
      barrier_arrive(kCodesReadyBarrier, threads + 32);
    } else if (!kWarmsUpProducts) {
      continue;
    }

    int own[2] = {};
    weights.template multiply<kWarmsUp>(memory, lane, n_words, warm_up, shared_weights, own);
    if (!warm_up) barrier_sync(kServiceBarrier, threads + 32);
    if (!stores) continue;
    const float r = warm_up ? 1.0f : shared.r;
    const int codes_sum = warm_up ? 0 : shared.sum;
    op.store(warm_up ? op.redirect(target, shared.discarded[lane]) : target,
             static_cast<float>(own[0] - codes_sum) * (per_unit[0] * r),
             static_cast<float>(own[1] - codes_sum) * (per_unit[1] * r));
  }
}

// Block i: item i.
template <class Op, int kSteps, int kPairs, int kQuads>
__global__ void __launch_bounds__(bound_for(kPairs))
    short_gemv_kernel(Input input, Op op, int n_warps) {
  extern __shared__ uint4 memory[];
  short_gemv<Op, kSteps, kPairs, kQuads>(input, op, n_warps, static_cast<int>(blockIdx.x), memory);
}

// Fetches the weights of a warp's pairs, [2 n_pairs][n_words], an odd last row twice.
template <class Op>
__device__ __forceinline__ void fetch_pairs(const Op& op, int first_pair, int n_pairs, int lane,
                                            int n_words, uint32_t* weights) {
#pragma unroll 1
  for (int p = 0; p < n_pairs; ++p) {
    const PairRows rows = op.rows(first_pair + p);
    const uint32_t* second = rows.words[1] != nullptr ? rows.words[1] : rows.words[0];
    uint4* to = reinterpret_cast<uint4*>(weights + 2 * p * n_words);
#pragma unroll 1
    for (int w = lane; w < n_words / 4; w += 32) {
      copy_async(to + w, reinterpret_cast<const uint4*>(rows.words[0]) + w);
      copy_async(to + n_words / 4 + w, reinterpret_cast<const uint4*>(second) + w);
    }
  }
}

// Multiplies the row by the gains in z, where there are any, into z, by `threads` threads. Returns
// the largest magnitude of the thread.
template <bool kVector>
__device__ __forceinline__ uint32_t scale_row(const Input& input, int threads, int n_quads,
                                              float4* z) {
  const int t = static_cast<int>(threadIdx.x);
  const bool has_gain = input.gain != nullptr;
  uint32_t largest = 0;
#pragma unroll 1
  for (int begin = t; begin < n_quads; begin += kBatch * threads) {
    float4 v[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      v[j] = four<kVector>(input.x, 4 * (begin + j * threads), input.cols);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int quad = begin + j * threads;
      if (quad >= n_quads) break;
      if (has_gain && 4 * quad < input.cols) {
        v[j] = product(v[j], kVector ? z[quad] : four<false>(input.gain, 4 * quad, input.cols));
      }
      largest = max(largest, magnitude(v[j]));
      z[quad] = v[j];
    }
  }
  return largest;
}

// Any size: weights wait in shared memory. kPairs: pairs that a warp multiplies at once. kVector:
// the activation row can be read 16 bytes at a time.
//
// Item i is pairs i * cut.warps * cut.pairs_per_warp and up. `memory`: the row's codes, its values
// times gain (first only the gains), the weights of each warp's rows.
template <class Op, int kPairs, bool kVector>
__device__ __forceinline__ void long_gemv(const Input& input, const Op& op, const GemvCut& cut,
                                          int item, uint4* memory) {
  __shared__ GemvShared shared;
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int lane = t % 32;
  const int threads = cut.warps * 32;
  const int n_words = words_per_row(input.cols);
  const int n_quads = 4 * n_words;
  const bool has_gain = input.gain != nullptr;
  let_next_start();

  if (warp == cut.warps) {
    serve<kVector>(input, memory, threads, n_words, false, shared);
    return;
  }

  float4* const z = reinterpret_cast<float4*>(memory + n_words);
  uint32_t* const weights = reinterpret_cast<uint32_t*>(memory + n_words + n_quads) +
                            warp * cut.pairs_per_warp * 2 * n_words;
  const int first_pair = (item * cut.warps + warp) * cut.pairs_per_warp;
  const int n_pairs = min(cut.pairs_per_warp, op.pairs() - first_pair);
  if (has_gain && kVector) {
#pragma unroll 1
    for (int quad = t; 4 * quad < input.cols; quad += threads) {
      copy_async(z + quad, input.gain + 4 * quad);
    }
  }
  end_of_copies();
  fetch_pairs(op, first_pair, n_pairs, lane, n_words, weights);
  end_of_copies();
  const bool stores = lane < n_pairs;
  float scale[2] = {};
  typename Op::Target target{};
  if (stores) {
    const PairRows rows = op.rows(first_pair + lane);
    scale[0] = rows.scale[0];
    scale[1] = rows.scale[1];
    target = op.locate(0, first_pair + lane);
  }

  wait_for_previous();
  if (stores) op.prefetch(target);
  wait_for_older_copies();  // the gains
  const uint32_t largest = scale_row<kVector>(input, threads, n_quads, z);
  const RowFactors factors = factors_of(largest, input, warp, lane, cut.warps, false, shared);
  uint32_t* const codes = reinterpret_cast<uint32_t*>(memory);
#pragma unroll 1
  for (int quad = t; quad < n_quads; quad += threads) {
    codes[quad] = factors.zero ? 0 : quantise(z[quad], factors.s);
  }
  const float per_unit[2] = {scale[0] / factors.s, scale[1] / factors.s};
  wait_for_copies();
  barrier_sync(kCodesBarrier, threads);
  barrier_arrive(kCodesReadyBarrier, threads + 32);

  int own[2] = {};
#pragma unroll 1
  for (int p = 0; p < n_pairs; p += kPairs) {
    const uint32_t* row = weights + 2 * p * n_words;
    RowDot dot[2 * kPairs];
#pragma unroll 2
    for (int w = lane; w < n_words; w += 32) {
      const uint4 x = memory[w];
#pragma unroll
      for (int i = 0; i < 2 * kPairs; ++i) dot[i].add(row[i * n_words + w], x);
    }
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      const int sum = sum_warp(dot[i].sum());
      if (p + i / 2 == lane) own[i % 2] = sum;
    }
  }
  barrier_sync(kServiceBarrier, threads + 32);
  if (!stores) return;
  op.store(target, static_cast<float>(own[0] - shared.sum) * (per_unit[0] * shared.r),
           static_cast<float>(own[1] - shared.sum) * (per_unit[1] * shared.r));
}

// Block i: item i.
template <class Op, int kPairs, bool kVector>
__global__ void __launch_bounds__((kMaxGemvWarps + 1) * 32, 2)
    long_gemv_kernel(Input input, Op op, GemvCut cut) {
  extern __shared__ uint4 memory[];
  long_gemv<Op, kPairs, kVector>(input, op, cut, static_cast<int>(blockIdx.x), memory);
}

// Launches the instance of the kernel for short rows that the plan names.
template <class Op, size_t... I>
void launch_short(const ShortGemvPlan& plan, const Input& in, const Op& op, cudaStream_t stream,
                  std::index_sequence<I...>) {
  const auto launch_if = [&](bool is_instance, auto kernel) {
    if (is_instance) launch(kernel, plan.launch, stream, in, op, plan.warps);
    return is_instance;
  };
  require_instance((launch_if(plan.instance == static_cast<int>(I),
                              short_gemv_kernel<Op, kShortGemvs[I].steps, kShortGemvs[I].pairs,
                                                kShortGemvs[I].quads>) ||
                    ...));
}

}  // namespace

template <class Op>
void multiply(const ShortGemvPlan& plan, const Input& in, const Op& op, int, const Workspace&,
              cudaStream_t stream) {
  launch_short(plan, in, op, stream, std::make_index_sequence<kNumShortGemvs>());
}

template <class Op>
void multiply(const LongGemvPlan& plan, const Input& in, const Op& op, int, const Workspace&,
              cudaStream_t stream) {
  const auto kernel = !plan.by_fours            ? long_gemv_kernel<Op, 1, false>
                      : plan.pairs_at_once == 1 ? long_gemv_kernel<Op, 1, true>
                                                : long_gemv_kernel<Op, 2, true>;
  launch(kernel, plan.launch, stream, in, op, plan.cut);
}

template void multiply(const ShortGemvPlan&, const Input&, const QkvOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const ShortGemvPlan&, const Input&, const ProjectOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const ShortGemvPlan&, const Input&, const FfnUpOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const LongGemvPlan&, const Input&, const QkvOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const LongGemvPlan&, const Input&, const ProjectOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const LongGemvPlan&, const Input&, const FfnUpOp&, int, const Workspace&,
                       cudaStream_t);

}  // namespace edgellm::cuda
