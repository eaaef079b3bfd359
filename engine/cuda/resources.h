// Owners of what the CUDA runtime hands out. No destructor here throws or prints: after a device
// error the runtime refuses to free things, and the call that met the error has thrown already.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "kernels/cuda/check.h"

namespace edgellm {

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) {
    cuda::cuda_check(cudaMalloc(&data_, bytes), "allocating device memory");
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// Zeroed host memory that the device reads and writes in place, at the same address.
class PinnedMemory {
 public:
  explicit PinnedMemory(size_t bytes) {
    cuda::cuda_check(cudaHostAlloc(&data_, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
                     "allocating pinned memory");
    std::memset(data_, 0, bytes);
  }
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() {
    cuda::cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                     "creating a stream");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { cuda::cuda_check(cudaStreamSynchronize(stream_), "running the model"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() {
    cuda::cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
                     "creating an event");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const {
    cuda::cuda_check(cudaEventRecord(event_, stream), "recording an event");
  }
  // Returns at once where nothing was recorded yet.
  void wait(const char* what) const { cuda::cuda_check(cudaEventSynchronize(event_), what); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Records the launches between construction and finish(), which do not run. Other threads may work
// meanwhile, and this thread may make calls that do not touch the stream.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    cuda::cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed),
                     "starting a capture");
  }
  // After an exception: leaves the stream usable.
  ~Capture() {
    if (graph_ == nullptr) cudaStreamEndCapture(stream_, &graph_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  cudaGraph_t finish() {
    cuda::cuda_check(cudaStreamEndCapture(stream_, &graph_), "ending a capture");
    return graph_;
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
};

// A captured step that can be launched again and again.
class GraphExec {
 public:
  explicit GraphExec(cudaGraph_t graph) {
    cuda::cuda_check(cudaGraphInstantiate(&exec_, graph, 0), "instantiating a graph");
  }
  ~GraphExec() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  }
  GraphExec(GraphExec&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  GraphExec& operator=(GraphExec&&) = delete;
  void launch(cudaStream_t stream) const {
    cuda::cuda_check(cudaGraphLaunch(exec_, stream), "launching a graph");
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace edgellm
