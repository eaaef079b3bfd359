// edgellm run, edgellm chat.
#pragma once

#include "apps/cli/program.h"

namespace edgellm {

void add_run(Program& program);
void add_chat(Program& program);

}  // namespace edgellm
