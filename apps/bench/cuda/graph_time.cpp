#include "apps/bench/cuda/graph_time.h"

namespace edgellm::bench {
namespace {

using cuda::cuda_check;

constexpr int kGraphWarmUps = 3;

class TimedEvent {
 public:
  TimedEvent() { cuda_check(cudaEventCreate(&event_), "creating an event"); }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::vector<double> graph_times_us(const Stream& stream, int repeats,
                                   const std::function<void()>& work,
                                   const std::function<void()>& poll) {
  Capture capture(stream);
  work();
  const GraphExec graph(capture.finish());
  const TimedEvent begin;
  const TimedEvent end;
  std::vector<double> times;
  for (int i = 0; i < kGraphWarmUps + repeats; ++i) {
    poll();
    cuda_check(cudaEventRecord(begin, stream), "recording an event");
    graph.launch(stream);
    cuda_check(cudaEventRecord(end, stream), "recording an event");
    cuda_check(cudaEventSynchronize(end), "running a graph");
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, begin, end), "reading the time");
    if (i >= kGraphWarmUps) times.push_back(1000.0 * static_cast<double>(ms));
  }
  return times;
}

}  // namespace edgellm::bench
