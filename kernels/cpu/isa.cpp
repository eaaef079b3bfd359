#include "kernels/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {

#if defined(__x86_64__)
namespace {

// clang's __builtin_cpu_supports() knows no "f16c".
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// clang 14 knows no "avxvnni".
bool has_avx_vnni() {
  constexpr unsigned kAvxVnniBit = 1u << 4;  // of leaf 7.1, EAX
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnniBit) != 0;
}

// Products of int8 on tile registers.
bool has_amx() {
  constexpr unsigned kTileBit = 1u << 24;  // of leaf 7, EDX, both
  constexpr unsigned kInt8Bit = 1u << 25;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTileBit) != 0 &&
         (edx & kInt8Bit) != 0 && allow_tile_registers();
}

}  // namespace
#endif

std::vector<const Primitives*> usable_isas() {
  std::vector<const Primitives*> usable{&kPortable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
    usable.push_back(&kAvx2);
    if (has_avx_vnni()) usable.push_back(&kAvxVnni);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni")) {
      usable.push_back(&kAvx512);
      if (has_amx()) usable.push_back(&kAvx512Amx);
    }
  }
#elif defined(__aarch64__)
  usable.push_back(&kNeon);
  const ArmInstructions has = arm_instructions();
  if (has.dot_product) {
    usable.push_back(&kNeonDotprod);
    if (has.matrix_product) usable.push_back(&kNeonI8mm);
  }
#endif
  return usable;
}

const Primitives& primitives() {
  const std::vector<const Primitives*> usable = usable_isas();
  const char* forced = std::getenv("EDGELLM_ISA");
  if (forced == nullptr || *forced == '\0') return *usable.back();
  std::string names;
  for (const Primitives* isa : usable) {
    if (std::string_view(isa->name) == forced) return *isa;
    names += std::string(names.empty() ? "" : ", ") + isa->name;
  }
  throw Error(ExitCode::kUsage, "EDGELLM_ISA is '" + std::string(forced) +
                                    "', which this machine cannot run; it can run: " + names);
}

const char* isa_name() { return primitives().name; }

}  // namespace edgellm::cpu
