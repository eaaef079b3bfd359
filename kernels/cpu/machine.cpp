#include "kernels/cpu/machine.h"

#include <algorithm>
#include <fstream>
#include <thread>

namespace edgellm::cpu {

// glibc counts the cores of the affinity mask here.
int usable_cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

std::string machine_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace edgellm::cpu
