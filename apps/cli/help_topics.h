// What `edgellm help TOPIC` and the man page say beside the commands: environment variables and
// exit codes.
#pragma once

#include <string>
#include <vector>

namespace edgellm {

struct EnvironmentVariable {
  std::string name;
  std::string meaning;
  bool is_secret = false;  // its value is not shown
};

// Every variable that the program, or a library it depends on, heeds.
const std::vector<EnvironmentVariable>& environment_variables();

struct ExitStatus {
  std::string codes;  // "0", "129, 130, 143"
  std::string meaning;
};
const std::vector<ExitStatus>& exit_statuses();

}  // namespace edgellm
