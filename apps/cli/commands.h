// The commands about the command line itself: completion and help.
#pragma once

#include "apps/cli/program.h"

namespace edgellm {

void add_completion(Program& program);
void add_help(Program& program);

}  // namespace edgellm
