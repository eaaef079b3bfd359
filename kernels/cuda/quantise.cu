// Quantising many rows of activations, a launch before their product (gemm.cu, gemm_wgmma.cu).
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

// Waits for the kernel before, then quantises one row by kThreads threads. A thread keeps its first
// kKept loads: all of a row of up to 4 kThreads kKept columns.
//
// A partial sum of canonical_sum is one thread's, in the order of the columns. 64 threads have four
// neighbouring ones each, of the columns that they load. 256 threads have one each, of columns that
// they load once more, one by one; that takes a third of the time for one row, and more
// instructions.
template <bool kAligned, bool kNorm, int kThreads, int kKept>
__device__ void quantise_row(const Input& in, const QuantisedRows& out, int row) {
  constexpr bool kByFours = kThreads == kPartials / 4;
  static_assert(!kNorm || kByFours || kThreads == kPartials);
  constexpr int kStep = 4 * kThreads;  // columns of a load of all threads
  constexpr bool kKeepsGain = kNorm && !kByFours;
  __shared__ alignas(16) float partial[kPartials];  // written by fours
  __shared__ uint32_t warp_max[kThreads / 32];
  __shared__ int warp_sum[kThreads / 32];
  const int t = static_cast<int>(threadIdx.x);
  const int n = in.cols;
  const float* x = in.x + static_cast<size_t>(row) * static_cast<size_t>(n);

  float4 gain[kKeepsGain ? kKept : 1];
  if constexpr (kKeepsGain) {
#pragma unroll
    for (int j = 0; j < kKept; ++j) gain[j] = four<kAligned>(in.gain, 4 * t + j * kStep, n);
  }
  wait_for_previous();
  let_next_start();

  float4 squares = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  uint32_t largest = 0;  // magnitude
  float4 kept[kKept];
  const auto measure = [&](float4 z) {
    if constexpr (kNorm && kByFours) {
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
  const auto scaled_load = [&](float4 z, int j) {
    if constexpr (kKeepsGain) return product(z, gain[j]);
    return scaled(measure(z), 4 * t + j * kStep);
  };
  const auto compare = [&](float4 z) { largest = max(largest, magnitude(z)); };
#pragma unroll
  for (int j = 0; j < kKept; ++j) kept[j] = four<kAligned>(x, 4 * t + j * kStep, n);
  if constexpr (kNorm && !kByFours) {
    float own[4 * kKept];
#pragma unroll
    for (int j = 0; j < 4 * kKept; ++j) {
      own[j] = t + j * kThreads < n ? x[t + j * kThreads] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 4 * kKept; ++j) squares.x = fmaf(own[j], own[j], squares.x);
#pragma unroll 8
    for (int i = t + kKept * kStep; i < n; i += kThreads) squares.x = fmaf(x[i], x[i], squares.x);
  }
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    kept[j] = scaled_load(kept[j], j);
    compare(kept[j]);
  }
#pragma unroll 8
  for (int i = 4 * t + kKept * kStep; i < n; i += kStep) {
    compare(scaled(measure(four<kAligned>(x, i, n)), i));
  }

  largest = max_warp(largest);
  if (t % 32 == 0) warp_max[t / 32] = largest;
  if constexpr (kNorm && kByFours) *reinterpret_cast<float4*>(partial + 4 * t) = squares;
  if constexpr (kNorm && !kByFours) partial[t] = squares.x;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) largest = max(largest, warp_max[w]);
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
  float r = 1.0f;
  if constexpr (kNorm) r = rms_factor(fold_partials(partial), n, in.eps);
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
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(Input in, QuantisedRows out, bool early) {
  if (early) let_next_start();
  quantise_row<kAligned, kNorm, kThreads, kKept>(in, out, static_cast<int>(blockIdx.x));
}

template <bool kNorm, int kThreads, size_t... I>
bool launch_quantise(const QuantisePlan& plan, const Input& in, const QuantisedRows& out,
                     cudaStream_t stream, std::index_sequence<I...>) {
  const auto launch_if = [&](bool is_instance, auto kernel) {
    if (is_instance) launch(kernel, plan.launch, stream, in, out, plan.early);
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
  constexpr auto kAll = std::make_index_sequence<kNumKeptLoads>();
  constexpr auto kWideNorm = std::make_index_sequence<kNumWideNormLoads>();
  require_instance(launch_quantise<true, kQuantiseThreads>(plan, in, out, stream, kAll) ||
                   launch_quantise<true, kWideQuantiseThreads>(plan, in, out, stream, kWideNorm) ||
                   launch_quantise<false, kQuantiseThreads>(plan, in, out, stream, kAll) ||
                   launch_quantise<false, kWideQuantiseThreads>(plan, in, out, stream, kAll));
  return out;
}

}  // namespace edgellm::cuda
