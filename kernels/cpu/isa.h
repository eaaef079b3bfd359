// Which instruction set the CPU backend uses.
#pragma once

#include <string>
#include <vector>

namespace edgellm::cpu {

struct Primitives;

// The best path of this machine, or the one that EDGELLM_ISA names ("portable"; "avx2", "avx_vnni",
// "avx512", "avx512_amx"; "neon", "neon_dotprod", "neon_i8mm"). Throws Error (kUsage) when
// EDGELLM_ISA names an unknown path or one this machine lacks.
const Primitives& primitives();

const char* isa_name();                        // name of primitives()
std::vector<const Primitives*> usable_isas();  // every path this machine can run, slowest first

}  // namespace edgellm::cpu
