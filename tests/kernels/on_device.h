// Arrays on the GPU for tests of the CUDA backend.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/check.h"
#include "tests/support/gpu.h"

namespace edgellm::test {

using cuda::cuda_check;

// A device copy of an array, between guards of poison on both sides.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(std::span<const T> values) : n_(values.size()) {
    allocate();
    cuda_check(cudaMemcpy(data(), values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(std::span<const T>(values)) {}
  // Nothing but poison.
  explicit OnDevice(size_t n) : n_(n) { allocate(); }
  ~OnDevice() { cudaFree(base_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return reinterpret_cast<T*>(base_ + kGuard); }
  std::vector<T> read() const {
    std::vector<uint8_t> all(2 * kGuard + n_ * sizeof(T));
    cuda_check(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost), "copy");
    for (size_t i = 0; i < kGuard; ++i) {
      require(all[i] == 0xfe && all[all.size() - 1 - i] == 0xfe, "an op wrote beyond its output");
    }
    std::vector<T> values(n_);
    std::memcpy(values.data(), all.data() + kGuard, n_ * sizeof(T));
    return values;
  }

 private:
  static constexpr size_t kGuard = 256;
  void allocate() {
    const size_t bytes = 2 * kGuard + n_ * sizeof(T);
    cuda_check(cudaMalloc(reinterpret_cast<void**>(&base_), bytes), "allocate");
    cuda_check(cudaMemset(base_, 0xfe, bytes), "poison");
  }
  size_t n_;
  uint8_t* base_ = nullptr;
};

inline void finish() { cuda_check(cudaDeviceSynchronize(), "an op"); }

}  // namespace edgellm::test
