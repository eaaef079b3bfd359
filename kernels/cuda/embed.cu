// embed.
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace edgellm::cuda {
namespace {

__device__ __forceinline__ void embed_row(const EmbedArgs& args, int row) {
  const int dim = args.table.cols;
  const int id = args.ids[row];
  float* x = args.x + static_cast<size_t>(row) * static_cast<size_t>(dim);
  if (args.table.data == nullptr) {
    const TernaryMatrix& table = args.ternary;
    const uint8_t* codes = table.codes + static_cast<size_t>(id) * ternary_pitch(dim);
    for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
      // Bits 2 f of byte b of a word are column 4 f + b of its sixteen (cuda.h).
      const int code = (codes[i / 16 * 4 + i % 4] >> (i / 4 % 4 * 2) & 3) - 1;
      const float scale = scale_of(table, id, i / kScaleGroup);
      x[i] = code == 0 ? 0.0f : static_cast<float>(code) * scale;
    }
    return;
  }
  const size_t from = static_cast<size_t>(id) * static_cast<size_t>(dim);
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kThreads) {
    x[i] = widen(args.table.data, args.table.type, from + static_cast<size_t>(i));
  }
}

// Block i: row i.
__global__ void embed_kernel(EmbedArgs args) {
  const int row = static_cast<int>(blockIdx.x);
  let_next_start();
  wait_for_previous();
  embed_row(args, row);
}

}  // namespace

void embed(const EmbedArgs& args, cudaStream_t stream) {
  launch_first(embed_kernel, dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, stream,
               args);
}

}  // namespace edgellm::cuda
