// `edgellm bench --ops`: the ops of a layer by themselves.
#pragma once

#include "apps/bench/flags.h"

namespace edgellm {

// Returns the exit code.
int bench_ops(const BenchFlags& flags);

}  // namespace edgellm
