// edgellm bench.
#pragma once

#include "apps/cli/program.h"

namespace edgellm {

void add_bench(Program& program);

}  // namespace edgellm
