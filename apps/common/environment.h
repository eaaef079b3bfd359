// The environment, as the program reads it: a variable that is not set is empty.
#pragma once

#include <cstdlib>
#include <string>

namespace edgellm {

inline std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace edgellm
