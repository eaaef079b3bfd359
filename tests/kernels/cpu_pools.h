// Pools of every instruction set of this machine, alone and with threads.
#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

namespace edgellm::test {

inline std::vector<std::unique_ptr<cpu::Pool>> all_pools(
    std::initializer_list<int> thread_counts = {1, 3}) {
  std::vector<std::unique_ptr<cpu::Pool>> pools;
  for (const cpu::Primitives* isa : cpu::usable_isas()) {
    for (int threads : thread_counts) pools.push_back(std::make_unique<cpu::Pool>(threads, *isa));
  }
  return pools;
}

}  // namespace edgellm::test
