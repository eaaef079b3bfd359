// What this binary is.
#pragma once

#include <string>

namespace edgellm {

struct BuildInfo {
  std::string version;
  std::string revision;      // git's name of the commit, "unknown" outside a checkout
  std::string cuda_version;  // empty without GPU support
  std::string compiler;
};

BuildInfo build_info();

void print_version(bool json);

}  // namespace edgellm
