// The subcommand of this folder.
#pragma once

#include "apps/cli/program.h"

namespace edgellm {

void add_serve(Program& program);

}  // namespace edgellm
