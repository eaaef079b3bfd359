// The processor that this process runs on.
#pragma once

#include <string>

namespace edgellm::cpu {

// Cores this process may use: those of its affinity mask, so that taskset and cpusets are
// respected.
int usable_cores();

// As Linux names the processor; not every architecture has a name.
std::string machine_name();

}  // namespace edgellm::cpu
