// Launching kernels, and what a kernel does about its neighbours in the stream.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/plan/device.h"

namespace edgellm::cuda {

// ---- In a kernel: programmatic dependent launch (compute capability 9.0 and newer) -----------
//
// A kernel may start while the one before it in the stream still runs. Until it has called
// wait_for_previous() it must neither read what an earlier kernel writes nor write anything: it may
// fetch weights. That call returns when all earlier kernels of the stream have finished and their
// writes are visible, because each of them has waited in the same way.

__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// A kernel that starts before its input is there has time for a warm-up.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kStartsEarly = true;
#else
inline constexpr bool kStartsEarly = false;
#endif

// Lets the next kernel of the stream start as soon as there is room for it.
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// ---- On the host: the device -----------------------------------------------------------------

// Dynamic shared memory that a block may have, besides what the kernels declare statically.
inline size_t max_dynamic_shared() {
  static const size_t bytes = [] {
    int device = 0;
    int limit = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cudaDeviceGetAttribute");
    return static_cast<size_t>(limit) - kMostStaticShared;
  }();
  return bytes;
}

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

// Whether kernels can start before the one before them has ended: so they were compiled for the
// current device. Code for an older architecture that the driver translated cannot, it holds no
// wait. In mailbox.cu.
bool has_dependent_launch();

// Whether the device, and the code for it, has clusters as DeviceTraits says. In gemm_skinny.cu.
bool has_clusters();

// Whether there is room for the largest clusters of attention. In attention_decode.cu.
bool has_large_clusters();

// Whether the device has wgmma, and the program code with it. In attention_wgmma.cu.
bool has_wgmma();

inline DeviceTraits current_device() {
  return {multiprocessors(), max_dynamic_shared(), has_wgmma(), has_clusters(),
          has_large_clusters()};
}

// ---- On the host: launches -------------------------------------------------------------------

// Launches the instance that a plan names: `launch_if` of each of a kernel's instances returns
// whether it was that one.
inline void require_instance(bool was_launched) {
  require(was_launched, "a plan names an instance that the kernel does not have");
}

enum class Start {
  kEarly,          // may begin while the kernel before it runs; calls wait_for_previous()
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

inline dim3 grid_of(const LaunchSize& size) {
  return dim3(static_cast<unsigned>(size.blocks[0]), static_cast<unsigned>(size.blocks[1]),
              static_cast<unsigned>(size.blocks[2]));
}

inline cudaLaunchAttribute in_clusters(int blocks) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return cluster;
}

inline void prepare_cluster(const void* kernel, int blocks, size_t shared_bytes) {
  prepare(kernel, shared_bytes);
  if (blocks <= kClusterBlocks) return;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
             "cudaFuncSetAttribute");
}

// Whether there is room for a cluster of `blocks` blocks.
template <class... Params>
bool room_for_cluster(void (*kernel)(Params...), int blocks, int threads, size_t shared_bytes) {
  if (!has_dependent_launch()) return false;  // both came with compute capability 9.0
  if (shared_bytes > max_dynamic_shared()) return false;
  prepare_cluster(reinterpret_cast<const void*>(kernel), blocks, shared_bytes);
  cudaLaunchAttribute cluster = in_clusters(blocks);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (blocks > kClusterBlocks && error != cudaSuccess) {
    cudaGetLastError();  // or the next check would report it
    return false;        // not every device has such clusters
  }
  cuda_check(error, "looking for clusters");
  return clusters > 0;
}

// In clusters of `blocks` blocks, for which there is room; the grid is a multiple of them.
template <class... Params, class... Args>
void launch_clusters(void (*kernel)(Params...), int blocks, const LaunchSize& size,
                     cudaStream_t stream, const Args&... args) {
  prepare_cluster(reinterpret_cast<const void*>(kernel), blocks, size.shared_bytes);
  cudaLaunchAttribute attributes[2] = {in_clusters(blocks), early_start()};
  cudaLaunchConfig_t config{};
  config.gridDim = grid_of(size);
  config.blockDim = dim3(static_cast<unsigned>(size.threads));
  config.dynamicSmemBytes = size.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = has_dependent_launch() ? 2 : 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, Params(args)...), "a kernel launch");
}

template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, const Args&... args) {
  launch_at(Start::kEarly, kernel, grid, block, shared_bytes, stream, args...);
}

template <class... Params, class... Args>
void launch(void (*kernel)(Params...), const LaunchSize& size, cudaStream_t stream,
            const Args&... args) {
  launch(kernel, grid_of(size), dim3(static_cast<unsigned>(size.threads)), size.shared_bytes,
         stream, args...);
}

// The first kernel of a step. Places, ids, row lists and rules are written before it, by a copy or
// by the last kernel of the step before; so are marks, which other kernels must not read early all
// the same, since they may hold them in a cache. It begins after all of that, and every other
// kernel of the step begins after it has begun. So those may read them before they wait for the
// previous kernel.
template <class... Params, class... Args>
void launch_first(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                  cudaStream_t stream, const Args&... args) {
  launch_at(Start::kAfterPrevious, kernel, grid, block, shared_bytes, stream, args...);
}

}  // namespace edgellm::cuda
