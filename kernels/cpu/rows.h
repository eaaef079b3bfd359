// What the ops share about rows: where one begins, and how one that is not finite is reported.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace edgellm::cpu {

// Element `column` of row `row`, rows having `width` elements.
inline size_t at(int row, int width, int column = 0) {
  return static_cast<size_t>(row) * static_cast<size_t>(width) + static_cast<size_t>(column);
}

// `fault` of kernels/ops.h: the first value stays. From any thread.
inline void set_fault(int32_t* fault, int value) {
  int32_t none = 0;
  std::atomic_ref<int32_t>(*fault).compare_exchange_strong(none, value, std::memory_order_relaxed);
}

}  // namespace edgellm::cpu
