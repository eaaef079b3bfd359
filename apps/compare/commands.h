// edgellm compare.
#pragma once

#include "apps/cli/program.h"

namespace edgellm {

void add_compare(Program& program);

}  // namespace edgellm
