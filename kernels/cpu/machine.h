// The processor that this process runs on. What only Linux can be asked for is asked for here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace edgellm::cpu {

// Cores have Linux's numbers, below this one.
inline constexpr int kMostCpus = 1024;

// The cores that the calling thread may use, ascending.
std::vector<int> allowed_cpus();

// From now on the calling thread, and threads that it starts, use only these cores. Does nothing
// for none.
void bind_this_thread(const std::vector<int>& cpus);

// Cores this process may use: those of its affinity mask, so that taskset and cpusets are
// respected, and no more than the CPU time that its control groups allow, as of a container. More
// threads than that would use up a period's time early, and all wait for its end. The two threads
// of a core count as one: they share what computes, and every thread more is one to wait for.
int usable_cores();

// What the control groups of this process allow, of both versions: the least of its own group and
// of those around it. None where there is no limit. `root` stands before /proc and /sys.
std::optional<int> quota_of_groups(const std::string& root = "");

// Cores' worth of CPU time, at least one, that a cpu.max file of a control group allows; none where
// it sets no limit. `text` is what the file holds: "150000 100000" or "max 100000".
std::optional<int> cores_of_quota(std::string_view text);

// As Linux names the processor, or on ARM the board; not every machine has a name.
std::string machine_name();

#if defined(__x86_64__)
// Asks the system for the tile registers of AMX, for all threads. False where it has none to give.
bool allow_tile_registers();
#endif

#if defined(__aarch64__)
// What not every 64-bit ARM processor has.
struct ArmInstructions {
  bool dot_product;     // sdot
  bool matrix_product;  // smmla
};
ArmInstructions arm_instructions();
#endif

}  // namespace edgellm::cpu
