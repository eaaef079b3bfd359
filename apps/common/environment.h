// The environment, as the program reads it: a variable that is not set is empty.
#pragma once

#include <cstdlib>
#include <string>

#include "base/text.h"

namespace edgellm {

inline std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

struct NamedValue {
  std::string name;  // of the variable
  std::string value;
};

// A variable that other programs know in capitals and in small letters. The latter count first.
inline NamedValue either_case_variable(const char* name) {
  const std::string small = lower_ascii(name);
  std::string value = environment_variable(small.c_str());
  if (!value.empty()) return {small, value};
  return {name, environment_variable(name)};
}

}  // namespace edgellm
