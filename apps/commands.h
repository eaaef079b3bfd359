// The register of commands: main.cpp's, the tests' and the fuzz targets'. To add a command: declare
// it in its front end's commands.h and add it here. option_tree.h says how a value is described.
#pragma once

#include "apps/cli/program.h"

namespace edgellm {

// All commands, in the order of the help.
void add_commands(Program& program);

}  // namespace edgellm
