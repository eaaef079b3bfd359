// The sizes of attention in integers (kernels/integer_attention.h). Apart from its functions,
// because SIMD files must not include those.
#pragma once

#include "kernels/ops.h"

namespace edgellm {

// Positions that share a maximum, counted from position 0: two tiles of the cache.
inline constexpr int kIntegerChunk = 2 * kAttentionChunk;

// Wider heads would overflow the int32 sums of a score.
inline constexpr int kMaxIntegerHeadDim = 512;

// Partial sums of the weights of a chunk: position j goes to partial j % kWeightPartials.
inline constexpr int kWeightPartials = 16;

}  // namespace edgellm
