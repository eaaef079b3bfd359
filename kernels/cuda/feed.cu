// The last kernel of a decode step (FeedArgs), and what the kernels were compiled for.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"

namespace edgellm::cuda {
namespace {

// One warp, a lane a row.
__global__ void feed_kernel(FeedArgs args) {
  const int row = static_cast<int>(threadIdx.x);
  let_next_start();
  wait_for_previous();
  const uint32_t step = *args.step;
  const int32_t fault = *args.fault;
  const bool counts = args.rescored != nullptr && row < args.rows;
  int32_t rescored = 0;
  RescoredTotals totals{};
  if (counts) {
    rescored = args.rescored[row];
    totals = args.totals[row];
  }
  __syncwarp();  // all lanes have read before the first one writes
  if (row < args.rows) {
    const int32_t id = args.argmax[row];
    args.ids[row] = id < 0 ? 0 : id;
    args.positions[row] += 1;
    // Goes to the host as one transaction; no other store must be visible before it.
    *reinterpret_cast<volatile uint64_t*>(
        args.ring + static_cast<size_t>(step % kRingSteps) * kMaxInlineRows + row) =
        feed_word(step, id, fault);
  }
  if (counts) {
    args.totals[row] = {totals.steps + 1, totals.rescored + rescored, max(totals.most, rescored)};
  }
  if (row == 0) {
    *args.step = step + 1;
    *args.fault = 0;
  }
}

// Every kernel is compiled for the same list of architectures: this one speaks for all.
cudaFuncAttributes attributes_of_kernels() {
  cudaFuncAttributes attributes{};
  cuda_check(cudaFuncGetAttributes(&attributes, feed_kernel), "looking for the GPU's code");
  return attributes;
}

}  // namespace

void feed(const FeedArgs& args, cudaStream_t stream) {
  static_assert(kMaxInlineRows <= 32, "a lane a row");
  launch(feed_kernel, dim3(1), dim3(32), 0, stream, args);
}

void require_code() { attributes_of_kernels(); }

bool has_dependent_launch() {
  static const bool has = attributes_of_kernels().ptxVersion >= 90;
  return has;
}

}  // namespace edgellm::cuda
