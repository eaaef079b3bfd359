// edgellm pull.
#pragma once

#include "apps/cli/program.h"

namespace edgellm {

void add_pull(Program& program);

}  // namespace edgellm
