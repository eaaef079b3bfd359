// What this binary is.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace edgellm {

struct BuildInfo {
  std::string version;
  std::string revision;      // git's name of the commit, "unknown" outside a checkout
  std::string cuda_version;  // empty without GPU support
  std::string compiler;
  std::string build_type;  // CMake's: "Release"
  std::string flags;       // of the C++ compiler
  std::string cuda_flags;  // of nvcc; empty without GPU support, as is the next
  std::string cuda_architectures;
};

BuildInfo build_info();

// The `build` object of reports (docs/bench.md).
nlohmann::ordered_json build_json();

void print_version(bool json);

}  // namespace edgellm
