// A GPU and a launch as data. The choice of a kernel (linear.h, attention.h, head.h) is a function
// from sizes and a DeviceTraits to a plan: it launches nothing and needs no GPU.
#pragma once

#include <cstddef>

#include "kernels/ops.h"

namespace edgellm::cuda {

// All that the choice of a kernel depends on.
struct DeviceTraits {
  int multiprocessors = 0;
  size_t max_dynamic_shared = 0;    // bytes of a block, besides what the kernels declare statically
  bool has_wgmma = false;           // and the program was built with it
  bool has_clusters = false;        // of kClusterBlocks blocks with that much shared memory each
  bool has_large_clusters = false;  // of kLargeClusterBlocks blocks, as attention asks for them
};

// What kernels declare statically, at most; and what an SM takes of its memory for every block.
inline constexpr size_t kMostStaticShared = 8192;
inline constexpr size_t kReservedShared = 1024;

// Decode steps of up to this many rows are captured for each number of rows.
inline constexpr int kMaxInlineRows = 8;

// Blocks of a cluster. Eight is the most that every device with clusters has.
inline constexpr int kClusterBlocks = 8;
inline constexpr int kLargeClusterBlocks = 16;

// Grid and blocks of a launch.
struct LaunchSize {
  int blocks[3] = {1, 1, 1};
  int threads = 0;
  size_t shared_bytes = 0;  // dynamic
};

// n / each, rounded up.
EDGELLM_HOST_DEVICE constexpr int divide_up(int n, int each) { return (n + each - 1) / each; }

}  // namespace edgellm::cuda
