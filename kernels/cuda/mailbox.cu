// post_step, the last kernel of a decode step; and what the kernels were compiled for.
#include "kernels/choice.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/launch.cuh"

namespace edgellm::cuda {
namespace {

// One block; a thread has a row or several.
__global__ void post_step_kernel(MailboxArgs args) {
  let_next_start();
  wait_for_previous();
  const uint32_t step = *args.step;
  const int32_t fault = *args.fault;
  const int rows = min(args.rows, static_cast<int>(*args.n_used));
  __syncthreads();  // all threads have read before the first one writes
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += static_cast<int>(blockDim.x)) {
    const int32_t id = args.chosen[row];
    args.ids[row] = id < 0 ? 0 : id;
    args.positions[row] += 1;
    if (args.counts.marks != nullptr) count_choice(args.counts, row);
    // Goes to the host as one transaction; no other store must be visible before it.
    *reinterpret_cast<volatile uint64_t*>(
        args.mailbox +
        static_cast<size_t>(step % kMailboxSteps) * static_cast<size_t>(args.mailbox_rows) + row) =
        mailbox_word(step, id, fault);
    if (args.rescored == nullptr) continue;
    const int32_t rescored = args.rescored[row];
    const RescoredTotals totals = args.totals[row];
    args.totals[row] = {totals.steps + 1, totals.rescored + rescored, max(totals.most, rescored)};
  }
  if (threadIdx.x == 0) *args.step = step + 1;
}

// Every kernel is compiled for the same list of architectures: this one speaks for all.
cudaFuncAttributes attributes_of_kernels() {
  cudaFuncAttributes attributes{};
  cuda_check(cudaFuncGetAttributes(&attributes, post_step_kernel), "looking for the GPU's code");
  return attributes;
}

}  // namespace

void post_step(const MailboxArgs& args, cudaStream_t stream) {
  const int threads = std::min((args.rows + 31) / 32 * 32, 1024);
  launch(post_step_kernel, dim3(1), dim3(static_cast<unsigned>(threads)), 0, stream, args);
}

void require_code() { attributes_of_kernels(); }

bool has_dependent_launch() {
  static const bool has = attributes_of_kernels().ptxVersion >= 90;
  return has;
}

}  // namespace edgellm::cuda
