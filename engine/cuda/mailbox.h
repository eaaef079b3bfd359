// The host's side of the mailbox, into which a decode step posts the ids that it has chosen
// (cuda::MailboxArgs).
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "engine/backend.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda.h"

namespace edgellm {

class Mailbox {
 public:
  static size_t bytes(size_t max_rows) { return cuda::kMailboxSteps * max_rows * sizeof(uint64_t); }

  // `words` are bytes(max_rows) of pinned memory, zero where nothing was posted. The steps run on
  // `stream`.
  Mailbox(uint64_t* words, size_t max_rows, cudaStream_t stream, HostWork& host_work)
      : words_(words), max_rows_(max_rows), stream_(stream), host_work_(host_work) {}

  uint64_t* words() const { return words_; }

  // The value of a row (cuda::mailbox_value), as soon as the GPU has posted it.
  int32_t poll(uint32_t step, size_t row) {
    const std::atomic_ref word(words_[step % cuda::kMailboxSteps * max_rows_ + row]);
    // Asking the driver takes 0.3 us, a look at the word less than a nanosecond.
    constexpr int kLooksPerQuery = 100000;
    for (bool ended = false;;) {
      for (int look = 0; look < kLooksPerQuery; ++look) {
        const uint64_t posted = word.load(std::memory_order_acquire);
        if (cuda::mailbox_step(posted) == step) return cuda::mailbox_value(posted);
      }
      require(!ended, "the GPU has ended a step without posting its ids");
      const cudaError_t status = cudaStreamQuery(stream_);
      ++host_work_.polls;
      ended = status == cudaSuccess;
      if (!ended && status != cudaErrorNotReady) cuda::cuda_check(status, "running the model");
    }
  }

  // The fault of a step (kernels/ops.h); 0 for none.
  int32_t poll_fault(uint32_t step) { return cuda::mailbox_fault(poll(step, 0)); }

 private:
  uint64_t* words_;  // [kMailboxSteps, max_rows]
  size_t max_rows_;
  cudaStream_t stream_;
  HostWork& host_work_;
};

}  // namespace edgellm
