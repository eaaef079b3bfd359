// Rows of activations in groups: their codes, a launch before a product of several rows.
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/groups_ops.cuh"

namespace edgellm::cuda {
namespace {

// Block i: row i.
template <bool kVector>
__global__ void __launch_bounds__(kWideCodeThreads) code_kernel(Input in, CodedGroups out) {
  __shared__ float partial[kPartials];
  const int row = static_cast<int>(blockIdx.x);
  const int t = static_cast<int>(threadIdx.x);
  const int groups = group_count(in.cols);
  let_next_start();
  wait_for_previous();
  const float* x = in.x + static_cast<size_t>(row) * static_cast<size_t>(in.cols);
  uint32_t* high =
      reinterpret_cast<uint32_t*>(out.digits + 2 * static_cast<size_t>(row) * out.row_bytes);
  uint32_t* low = high + out.row_bytes / 4;
  const bool finite = code_row<kVector>(in, x, groups, partial, [&](int g, const CodedQuad& quad) {
    high[g * 32 + t % 32] = quad.high;
    low[g * 32 + t % 32] = quad.low;
    if (t % 32 != 0) return;
    out.unit[g * out.stride + row] = quad.unit;
    out.sum[g * out.stride + row] = quad.sum;
  });
  const bool bad = __syncthreads_or(!finite) != 0;
  float r = 1.0f;
  if (in.gain != nullptr) r = rms_factor(fold_partials(partial), in.cols, in.eps);
  if (t == 0) {
    out.r[row] = r;
    if (bad) set_fault(in.fault, in.layer + 1);
  }
  // A row with such a value is zero.
  for (int g = t; bad && g < groups; g += static_cast<int>(blockDim.x)) {
    out.unit[g * out.stride + row] = 0.0f;
  }
}

}  // namespace

CodedGroups code_groups(const LaunchSize& size, const Input& in, int rows,
                        const Workspace& workspace, cudaStream_t stream) {
  const CodedGroups coded{workspace.codes, workspace.group_unit,         workspace.group_sum,
                          workspace.row_r, quantised_row_bytes(in.cols), group_stride(rows)};
  if (size.threads > 0) {
    launch(by_fours(in) ? code_kernel<true> : code_kernel<false>, size, stream, in, coded);
  }
  return coded;
}

}  // namespace edgellm::cuda
