// The processor that this process runs on. What only Linux can be asked for is asked for here.
#pragma once

#include <string>

namespace edgellm::cpu {

// Cores this process may use: those of its affinity mask, so that taskset and cpusets are
// respected.
int usable_cores();

// As Linux names the processor, or on ARM the board; not every machine has a name.
std::string machine_name();

#if defined(__aarch64__)
// What not every 64-bit ARM processor has.
struct ArmInstructions {
  bool dot_product;     // sdot
  bool matrix_product;  // smmla
};
ArmInstructions arm_instructions();
#endif

}  // namespace edgellm::cpu
