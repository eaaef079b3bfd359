// edgellm bench, edgellm plan.
#pragma once

#include "apps/cli/program.h"

namespace edgellm {

void add_bench(Program& program);
void add_plan(Program& program);

}  // namespace edgellm
