// Launching kernels.
#pragma once

#include <algorithm>

#include "kernels/cuda/check.h"

namespace edgellm::cuda {

template <int N>
struct Constant {
  static constexpr int value = N;
};

// Dynamic shared memory a block may have on the current device, what the kernels declare
// statically left out.
inline size_t max_dynamic_shared() {
  static const size_t bytes = [] {
    int device = 0;
    int limit = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cudaDeviceGetAttribute");
    return static_cast<size_t>(limit) - 8192;
  }();
  return bytes;
}

// Of the current device.
inline int multiprocessors() {
  static const int count = [] {
    int device = 0;
    int n = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
    return n;
  }();
  return count;
}

// Whether the kernels, as they were compiled for the current device, can start before the one
// before them has ended (common.cuh). Code for an older architecture that the driver translated for
// a newer device cannot: it holds no wait. In mailbox.cu.
bool has_dependent_launch();

enum class Start {
  kEarly,          // may begin while the kernel before it runs; waits by itself (common.cuh)
  kAfterPrevious,  // begins when everything before it in the stream has ended
};

// What all launches of a kernel share.
inline void prepare(const void* kernel, size_t shared_bytes) {
  // One division of the SM's memory into cache and shared memory for all kernels: changing it would
  // wait until the SM is idle, and blocks could not start early.
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared),
             "cudaFuncSetAttribute");
  // The most that any launch may ask for: a captured graph keeps launches of several sizes.
  if (shared_bytes > 32 * 1024) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(std::max(shared_bytes, max_dynamic_shared()))),
               "cudaFuncSetAttribute");
  }
}

inline cudaLaunchAttribute early_start() {
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  return dependent;
}

template <class... Params, class... Args>
void launch_at(Start start, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
               cudaStream_t stream, const Args&... args) {
  prepare(reinterpret_cast<const void*>(kernel), shared_bytes);
  cudaLaunchAttribute dependent = early_start();
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = start == Start::kEarly && has_dependent_launch() ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, Params(args)...), "a kernel launch");
}

inline cudaLaunchAttribute clusters_of(int blocks) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return cluster;
}

// Whether the current device, and the code for it, has clusters of so many blocks.
template <class... Params>
bool room_for_clusters(int blocks, void (*kernel)(Params...), dim3 block, size_t shared_bytes) {
  if (!has_dependent_launch()) return false;  // both came with compute capability 9.0
  prepare(reinterpret_cast<const void*>(kernel), shared_bytes);
  cudaLaunchAttribute cluster = clusters_of(blocks);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  cuda_check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "looking for clusters");
  return clusters > 0;
}

// In clusters of so many blocks, for which there is room; the grid is a multiple of them.
template <class... Params, class... Args>
void launch_clusters(int blocks, void (*kernel)(Params...), dim3 grid, dim3 block,
                     size_t shared_bytes, cudaStream_t stream, const Args&... args) {
  prepare(reinterpret_cast<const void*>(kernel), shared_bytes);
  cudaLaunchAttribute attributes[2] = {clusters_of(blocks), early_start()};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  cuda_check(cudaLaunchKernelEx(&config, kernel, Params(args)...), "a kernel launch");
}

template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, const Args&... args) {
  launch_at(Start::kEarly, kernel, grid, block, shared_bytes, stream, args...);
}

// The first kernel of a step. Places, ids and row lists are written before it, by a copy or by the
// last kernel of the step before: because it begins after all of that, and every other kernel of
// the step after it has begun, those may read them before they wait for the previous kernel.
template <class... Params, class... Args>
void launch_first(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                  cudaStream_t stream, const Args&... args) {
  launch_at(Start::kAfterPrevious, kernel, grid, block, shared_bytes, stream, args...);
}

}  // namespace edgellm::cuda
