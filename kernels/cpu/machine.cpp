#include "kernels/cpu/machine.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

namespace edgellm::cpu {

namespace {

// The least that the control groups of this process allow (cgroups, version 2), from its own up to
// the root.
std::optional<int> quota_of_groups() {
  std::ifstream groups("/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::/")) path = line.substr(3);
  }
  std::optional<int> least;
  while (!path.empty()) {
    if (path.back() == '/') path.pop_back();
    std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
    std::string text;
    if (std::getline(file, text)) {
      const std::optional<int> quota = cores_of_quota(text);
      if (quota) least = std::min(least.value_or(*quota), *quota);
    }
    path.erase(std::min(path.size(), path.rfind('/') + 1));
  }
  return least;
}

}  // namespace

std::optional<int> cores_of_quota(std::string_view text) {
  std::istringstream in{std::string(text)};
  long quota_us = 0;
  long period_us = 0;
  if (!(in >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return std::nullopt;
  return static_cast<int>(std::clamp(quota_us / period_us, 1L, 1L << 20));
}

int usable_cores() {
  // glibc counts the cores of the affinity mask here.
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::min(cores, quota_of_groups().value_or(cores));
}

#if defined(__x86_64__)
bool allow_tile_registers() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, Linux 5.16
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

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
