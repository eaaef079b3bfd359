// edgellm run, edgellm chat.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/program.h"

namespace edgellm {

void add_run(Program& program);
void add_chat(Program& program);

// `edgellm MODEL` at a terminal is a chat: the arguments with the command that they lack. Others
// are returned as they are. Throws Error (kUsage) for a model without a command elsewhere.
std::vector<std::string> with_command(const Program& program,
                                      const std::vector<std::string>& arguments);

}  // namespace edgellm
