#include "kernels/cpu/machine.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

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
  std::ifstream board("/proc/device-tree/model");  // "Raspberry Pi 5 Model B Rev 1.0", and a 0
  std::string name;
  if (std::getline(board, name, '\0') && !name.empty()) return name;
  return "unknown processor";
}

#if defined(__aarch64__)
ArmInstructions arm_instructions() {
  return {(getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0, (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0};
}
#endif

}  // namespace edgellm::cpu
