// Bytes that decoding must read, by the layout of the file.
#pragma once

#include <cstdint>

#include "engine/backend.h"

namespace edgellm {

// Bytes that a decoded token reads of the weights: all but the embedding table, of which it reads
// one row. A tied head is that table, and is read. A certified head is read instead of the head
// (MemoryPlan::certified_head).
uint64_t weight_bytes_per_token(const ModelFile& model, uint64_t certified_head_bytes = 0);

// Bytes of the KV cache of one sequence.
uint64_t kv_cache_bytes(const ModelConfig& config, int context, KvType type);

}  // namespace edgellm
