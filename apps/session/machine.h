// The machine that measures and what this process takes of it, as Linux tells.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/common/measured.h"

namespace edgellm {

struct Machine {
  std::string cpu;  // model name
  std::string isa;  // path of the CPU kernels
  int usable_cores = 0;
  Measured<uint64_t> last_level_cache_bytes;  // of the largest cache that core 0 reads through
  Measured<uint64_t> memory_bytes;
  Measured<std::string> frequency_governor;  // of core 0
  Measured<double> load_average;             // of the last minute, other work included
  std::string os;                            // "Debian GNU/Linux 12 (bookworm)"
  std::string kernel;                        // "Linux 6.1.0-18-amd64 x86_64"
  std::string date;                          // UTC, ISO 8601, when this was read
};

Machine read_machine();

// What new work could take now without pushing others out. Of the machine: limits of a container
// do not count.
Measured<uint64_t> available_memory_bytes();

nlohmann::ordered_json to_json(const Machine& machine);

// Of this process up to now.
struct ProcessUsage {
  int64_t cpu_ns = 0;  // user and system time of all threads
  int threads = 0;     // alive now
  Measured<uint64_t> resident_bytes;
  Measured<uint64_t> peak_resident_bytes;
};
ProcessUsage process_usage();

// Lets peak_resident_bytes begin anew. False where the system does not allow it.
bool reset_peak_resident();

}  // namespace edgellm
