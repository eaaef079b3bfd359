// Quantising many rows of activations, a launch before their product (gemm.cu, gemm_wgmma.cu).
#include <iterator>
#include <utility>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/linear_kernels.cuh"

namespace edgellm::cuda {
namespace {

// One code, a number, without a clamp as in quantise(), which packs four. That one takes longer
// here, in spite of fewer instructions (docs/ladder.md, "Tiles").
__device__ inline int code_of(float z, float s) {
  return static_cast<int>(__float_as_uint(z * s + 12582912.0f)) - 0x4b400000;
}

// One row by kThreads threads. A thread keeps its first kKept loads: rows of up to 4 kThreads kKept
// columns are read once, and all at once.
template <bool kAligned, bool kNorm, int kThreads, int kKept>
__device__ void quantise_row(const Input& in, const QuantisedRows& out, int row) {
  // With a norm a thread keeps four neighbouring partial sums of canonical_sum.
  static_assert(!kNorm || kThreads == kPartials / 4);
  constexpr int kStep = 4 * kThreads;               // columns of a load of all threads
  __shared__ alignas(16) float partial[kPartials];  // written by fours
  __shared__ uint32_t warp_max[kThreads / 32];
  __shared__ int warp_sum[kThreads / 32];
  const int t = static_cast<int>(threadIdx.x);
  const int n = in.cols;
  const float* x = in.x + static_cast<size_t>(row) * static_cast<size_t>(n);

  float4 squares = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  uint32_t largest = 0;  // magnitude
  float4 kept[kKept];
  const auto measure = [&](float4 z) {
    if constexpr (kNorm) {
      squares.x = fmaf(z.x, z.x, squares.x);
      squares.y = fmaf(z.y, z.y, squares.y);
      squares.z = fmaf(z.z, z.z, squares.z);
      squares.w = fmaf(z.w, z.w, squares.w);
    }
    return z;
  };
  const auto scaled = [&](float4 v, int i) {
    if constexpr (kNorm) return product(v, four<kAligned>(in.gain, i, n));
    return v;
  };
  const auto compare = [&](float4 z) {
    largest = max(largest, magnitude(z.x));
    largest = max(largest, magnitude(z.y));
    largest = max(largest, magnitude(z.z));
    largest = max(largest, magnitude(z.w));
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) kept[j] = four<kAligned>(x, 4 * t + j * kStep, n);
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    kept[j] = scaled(measure(kept[j]), 4 * t + j * kStep);
    compare(kept[j]);
  }
#pragma unroll 8
  for (int i = 4 * t + kKept * kStep; i < n; i += kStep) {
    compare(scaled(measure(four<kAligned>(x, i, n)), i));
  }

  largest = max_warp(largest);
  if (t % 32 == 0) warp_max[t / 32] = largest;
  if constexpr (kNorm) *reinterpret_cast<float4*>(partial + 4 * t) = squares;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) largest = max(largest, warp_max[w]);
  float r = 1.0f;
  if constexpr (kNorm) r = rms_factor(fold_partials(partial), n, in.eps);
  const RowFactors factors = row_factors(largest, kNorm);

  const int padded = static_cast<int>(quantised_row_bytes(n));
  // Of columns 4 t + j * kStep.
  int8_t* codes = out.codes + out.place(row, 4 * t);
  const size_t step = out.place(row, kStep) - out.place(row, 0);
  int sum = 0;
  const auto write = [&](int j, float4 z) {
    int packed = 0;
    if (!factors.zero) {
      const int a = code_of(z.x, factors.s);
      const int b = code_of(z.y, factors.s);
      const int c = code_of(z.z, factors.s);
      const int d = code_of(z.w, factors.s);
      sum += (a + b) + (c + d);
      packed = (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24;
    }
    *reinterpret_cast<int*>(codes + static_cast<size_t>(j) * step) = packed;
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    if (4 * t + j * kStep < padded) write(j, kept[j]);
  }
#pragma unroll 8
  for (int j = kKept; 4 * t + j * kStep < padded; ++j) {
    write(j, scaled(four<kAligned>(x, 4 * t + j * kStep, n), 4 * t + j * kStep));
  }
  sum = sum_warp(sum);
  if (t % 32 == 0) warp_sum[t / 32] = sum;
  __syncthreads();
  if (t == 0) {
#pragma unroll
    for (int w = 1; w < kThreads / 32; ++w) sum += warp_sum[w];
    out.s[row] = factors.s;
    out.r[row] = r;
    out.sum[row] = sum;
    if (!factors.finite) set_fault(in.fault, in.layer + 1);
  }
}

template <bool kAligned, bool kNorm, int kThreads, int kKept>
__global__ void __launch_bounds__(kThreads) quantise_kernel(Input in, QuantisedRows out) {
  // The product starts when the SMs are empty. Its blocks would crowd on those that already are,
  // and its tiles are large.
  if (out.tokens == 0) let_next_start();
  wait_for_previous();
  let_next_start();
  quantise_row<kAligned, kNorm, kThreads, kKept>(in, out, static_cast<int>(blockIdx.x));
}

template <bool kNorm, int kThreads, size_t... I>
bool launch_quantise(const QuantisePlan& plan, const Input& in, const QuantisedRows& out,
                     cudaStream_t stream, std::index_sequence<I...>) {
  const auto launch_if = [&](bool is_instance, auto kernel) {
    if (is_instance) launch(kernel, plan.launch, stream, in, out);
    return is_instance;
  };
  if ((in.gain != nullptr) != kNorm || plan.launch.threads != kThreads) return false;
  return ((launch_if(plan.kept == kKeptLoads[I] && plan.by_fours,
                     quantise_kernel<true, kNorm, kThreads, kKeptLoads[I]>) ||
           launch_if(plan.kept == kKeptLoads[I] && !plan.by_fours,
                     quantise_kernel<false, kNorm, kThreads, kKeptLoads[I]>)) ||
          ...);
}

}  // namespace

QuantisedRows quantise_rows(const QuantisePlan& plan, CodeOrder order, const Input& in, int rows,
                            const Workspace& workspace, cudaStream_t stream) {
  const size_t row_bytes = quantised_row_bytes(in.cols);
  const QuantisedRows out{workspace.codes, workspace.row_s,
                          workspace.row_r, workspace.row_sum,
                          row_bytes,       order == CodeOrder::kBlocks ? rows : 0};
  constexpr auto kInstances = std::make_index_sequence<std::size(kKeptLoads)>();
  require_instance(launch_quantise<true, kQuantiseThreads>(plan, in, out, stream, kInstances) ||
                   launch_quantise<false, kQuantiseThreads>(plan, in, out, stream, kInstances) ||
                   launch_quantise<false, kWideQuantiseThreads>(plan, in, out, stream, kInstances));
  return out;
}

}  // namespace edgellm::cuda
