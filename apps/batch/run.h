// Answers the requests of an input, many at a time, and keeps what is done safe (docs/batch.md).
#pragma once

#include "apps/batch/flags.h"

namespace edgellm {

// Returns the exit code.
int run_batch(const BatchFlags& flags);

}  // namespace edgellm
