// edgellm batch --merge: the outputs of shards become one.
#pragma once

#include "apps/batch/flags.h"

namespace edgellm {

// Returns the exit code. Throws Error: kUsage for outputs that are not shards of one run,
// kVerification where an answer is missing or is there twice.
int merge_batches(const BatchFlags& flags);

}  // namespace edgellm
