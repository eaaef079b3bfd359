// Hands out pieces of a pool's scratch memory. Sizes are known before the memory is asked for, so
// the same sequence of take() calls runs twice: once to measure, once to place.
#pragma once

#include <cstddef>

namespace edgellm::cpu {

class Carver {
 public:
  explicit Carver(std::byte* base = nullptr) : base_(base) {}

  template <class T>
  T* take(size_t count) {
    std::byte* place = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(place);
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace edgellm::cpu
