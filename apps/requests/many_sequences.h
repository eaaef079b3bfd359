// The back end of many sequences, and how much KV cache they share.
#pragma once

#include <cstdint>

#include "apps/session/session.h"

namespace edgellm {

// Bounds the table of blocks that all sequences share on the device.
inline constexpr int kMaxSequences = 4096;

struct ManySequences {
  int sequences = 0;         // 0: the device's default
  uint64_t kv_memory = 0;    // bytes; 0: what there is
  int max_batch_tokens = 0;  // of a pass that decodes (SchedulerOptions); 0: --prefill-chunk's
};

// Prints a note about the size of the cache. Throws Error (kUsage, kDevice).
Backend& start_many_sequences(Session& session, const ManySequences& wanted);

}  // namespace edgellm
