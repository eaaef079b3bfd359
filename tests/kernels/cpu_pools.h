// Pools of threads for tests of ops.
#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

namespace edgellm::test {

// Of every instruction set of this machine, alone and with threads.
inline std::vector<std::unique_ptr<cpu::Pool>> all_pools(
    std::initializer_list<int> thread_counts = {1, 3}) {
  std::vector<std::unique_ptr<cpu::Pool>> pools;
  for (const cpu::Primitives* isa : cpu::usable_isas()) {
    for (int threads : thread_counts) pools.push_back(std::make_unique<cpu::Pool>(threads, *isa));
  }
  return pools;
}

// What a GPU is compared with where ref is too slow, as for the real shapes: cpu is proven equal to
// ref (cpu_ops_test.cpp).
inline cpu::Pool& fast_pool() {
  static cpu::Pool pool(8, cpu::primitives());
  return pool;
}

}  // namespace edgellm::test
