// edgellm batch.
#pragma once

#include "apps/cli/program.h"

namespace edgellm {

void add_batch(Program& program);

}  // namespace edgellm
