// A test that cannot run here says so and is counted as skipped by ctest (tests/CMakeLists.txt).
#pragma once

#include <cstdio>
#include <string>

namespace edgellm::test {

// Use: if (no_fixtures) { skip("EDGELLM_FIXTURES: no such folder"); return; }
inline void skip(const std::string& reason) { std::printf("[skipped] %s\n", reason.c_str()); }

}  // namespace edgellm::test
