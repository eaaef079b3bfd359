// The back end of a batch: how many sequences share how much KV cache.
#pragma once

#include "apps/batch/flags.h"
#include "apps/session/session.h"

namespace edgellm {

// Prints a note about the size of the cache. Throws Error (kUsage, kDevice).
Backend& start_batch_backend(Session& session, const BatchFlags& flags);

}  // namespace edgellm
