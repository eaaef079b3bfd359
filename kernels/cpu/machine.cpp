#include "kernels/cpu/machine.h"

#include <sched.h>

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

#include "base/files.h"
#include "kernels/cpu/affinity.h"

namespace edgellm::cpu {
namespace {

static_assert(kMostCpus == CPU_SETSIZE);

// Of one control group, whose files are in `folder`.
std::optional<int> quota_of_group(const std::string& folder, bool is_version_2) {
  if (is_version_2) return cores_of_quota(first_line(folder + "/cpu.max"));
  return cores_of_quota(first_line(folder + "/cpu.cfs_quota_us") + " " +
                        first_line(folder + "/cpu.cfs_period_us"));
}

}  // namespace

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  // Fails on a machine of more cores than a set holds.
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void bind_this_thread(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < kMostCpus) CPU_SET(cpu, &set);
  }
  (void)sched_setaffinity(0, sizeof set, &set);  // a hint
}

std::optional<int> quota_of_groups(const std::string& root) {
  std::optional<int> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  // "0::/user.slice" (version 2) or "4:cpu,cpuacct:/docker/5f" (version 1)
  for (std::string line; std::getline(groups, line);) {
    const size_t controllers = line.find(':') + 1;
    const size_t end = line.find(':', controllers);
    if (controllers == 0 || end == std::string::npos) continue;
    const std::string names = line.substr(controllers, end - controllers);
    if (!names.empty() && ("," + names + ",").find(",cpu,") == std::string::npos) continue;
    const std::string folder = root + "/sys/fs/cgroup/" + names;
    // Up to the root: in a container that may be the group itself.
    for (std::string path = line.substr(end + 1); !path.empty();) {
      if (path.back() == '/') path.pop_back();
      const std::optional<int> quota = quota_of_group(folder + path, names.empty());
      if (quota) least = std::min(least.value_or(*quota), *quota);
      path.erase(std::min(path.size(), path.rfind('/') + 1));
    }
  }
  return least;
}

std::optional<int> cores_of_quota(std::string_view text) {
  std::istringstream in{std::string(text)};
  long quota_us = 0;
  long period_us = 0;
  if (!(in >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return std::nullopt;
  return static_cast<int>(std::clamp(quota_us / period_us, 1L, 1L << 20));
}

int usable_cores() {
  int cores = physical_cores(allowed_cpus());
  if (cores == 0) cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
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
