// The parts of attention that differ where the cache holds codes.
#pragma once

#include "kernels/ops.h"

namespace edgellm::ref {

// Writes the codes and units of one position's key and value of one kv head. False: a value is not
// finite; what it writes is finite all the same.
bool store_codes(const KvCache& kv, int sequence, int position, int kv_head, const float* key,
                 const float* value);

// kernels/ops.h, AttentionArgs.
void integer_attention(const AttentionArgs& args);

}  // namespace edgellm::ref
