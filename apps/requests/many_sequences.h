// The back end of many sequences, and how much KV cache they share.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/session/session.h"
#include "engine/dispatcher.h"

namespace edgellm {

// Bounds the table of blocks that all sequences share on the device.
inline constexpr int kMaxSequences = 4096;

struct ManySequences {
  int sequences = 0;         // of each device; 0: its default
  uint64_t kv_memory = 0;    // bytes, of each device; 0: what there is
  int max_batch_tokens = 0;  // of a pass that decodes (SchedulerOptions); 0: --prefill-chunk's
  int sharers = 1;           // models that share what memory there is
};

// Whether the memory that is free now, on every device, holds the weights, and a cache for at least
// one sequence that fills its context, or as much as was asked for.
bool has_room_for_sequences(const Session& session, const ManySequences& wanted);

// A back end on each of the session's devices. Prints a note about the size of the cache. Throws
// Error (kUsage, kDevice).
std::vector<Dispatcher::Engine> start_many_sequences(Session& session, const ManySequences& wanted);

}  // namespace edgellm
