// How long many requests take, and how many devices meet a deadline: arithmetic over measured
// speeds.
#pragma once

#include <cstdint>
#include <optional>

namespace edgellm::bench {

// Requests of one size.
struct Workload {
  int64_t requests = 0;
  int prompt = 0;  // ids of a prompt
  int answer = 0;  // ids of an answer
};

// Of one device.
struct DeviceSpeed {
  int sequences = 0;         // requests that are answered at the same time
  double prefill_ids_s = 0;  // prompt ids a second
  double step_s = 0;         // a decode step, which gives an id of each sequence
  double start_s = 0;        // until the weights are loaded
};

// Seconds that one device takes for `requests` requests of the workload: its start, all prompts,
// and as many rounds of answers as the sequences need. The last round counts as a full one.
double batch_seconds(const Workload& work, const DeviceSpeed& speed, int64_t requests);

// The fewest devices, each with its share of the requests, that end within `deadline_s`. Empty
// where not even a device for each request would.
std::optional<int64_t> devices_for(const Workload& work, const DeviceSpeed& speed,
                                   double deadline_s);

// The requests of the device that has the most of them.
int64_t largest_share(const Workload& work, int64_t devices);

}  // namespace edgellm::bench
