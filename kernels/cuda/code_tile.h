// The tiles of a cache of codes (KvCache, types i16 and i8) on a GPU: keys and values as the tensor
// cores take them, in digits.
//
// A code has one digit (i8) or an upper and a lower one (i16, kernels/integer_attention.h), each an
// int8. A tile is made of slabs, whose rows hold 32 bytes of the upper digits, then 32 of the lower
// ones: a step of the tensor cores. The 16-byte words of a row are swizzled as wgmma's shared
// memory layouts of 64 and 32 bytes want it (PTX ISA, "Shared memory layout"), which also spares
// ldmatrix bank conflicts. So a tile is copied to shared memory as it is.
//
//   keys     [dims / 32] slabs of 64 rows, a row for each position: 32 dimensions
//   values   [2] slabs of `dims` rows, a row for each dimension: 32 positions
//
// Keys are the columns of the product with the queries, whose lane t has columns 2 t and 2 t + 1 of
// every eight. As rows of the product with the values it wants four neighbouring positions: so the
// keys of 16 positions lie in an order that gives it those.
#pragma once

#include "kernels/ops.h"

namespace edgellm::cuda {

inline constexpr int kSlabDims = 32;  // dimensions, or positions of values

EDGELLM_HOST_DEVICE constexpr int digit_count(KvType type) { return type == KvType::kI16 ? 2 : 1; }

// Bytes of a row of a slab, of a slab of keys, and of a tile of either.
EDGELLM_HOST_DEVICE constexpr int slab_row_bytes(int digits) { return kSlabDims * digits; }
EDGELLM_HOST_DEVICE constexpr int key_slab_bytes(int digits) {
  return kAttentionChunk * slab_row_bytes(digits);
}
EDGELLM_HOST_DEVICE constexpr int code_tile_bytes(int dims, int digits) {
  return kAttentionChunk * dims * digits;
}

// Where byte `at` of a slab lies.
EDGELLM_HOST_DEVICE constexpr int swizzled(int at, int digits) {
  return at ^ (at >> 3 & (digits == 2 ? 0x30 : 0x10));
}

// The row of the key of a position in its tile, and the position of a row of 16.
EDGELLM_HOST_DEVICE constexpr int key_row(int position) {
  return (position & 0x31) | (position >> 1 & 6) | (position & 2) << 2;
}
EDGELLM_HOST_DEVICE constexpr int key_position(int row) {
  return (row & 0x31) | (row & 6) << 1 | (row >> 2 & 2);
}

// Where a digit (0: the upper one) of the code of dimension d of a position lies in its tile.
EDGELLM_HOST_DEVICE constexpr int key_byte(int position, int d, int digit, int digits) {
  return d / kSlabDims * key_slab_bytes(digits) +
         swizzled(key_row(position % kAttentionChunk) * slab_row_bytes(digits) + digit * kSlabDims +
                      d % kSlabDims,
                  digits);
}
EDGELLM_HOST_DEVICE constexpr int value_byte(int position, int d, int digit, int digits, int dims) {
  return position % kAttentionChunk / kSlabDims * dims * slab_row_bytes(digits) +
         swizzled(d * slab_row_bytes(digits) + digit * kSlabDims + position % kSlabDims, digits);
}

// The codes of queries for prefill: for every row and head `dims / 32` times 32 upper digits, then
// 32 lower ones.
EDGELLM_HOST_DEVICE constexpr int query_code_bytes(int dims) { return 2 * dims; }

}  // namespace edgellm::cuda
