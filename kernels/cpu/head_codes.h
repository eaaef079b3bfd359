// The codes of the CPU's certified head: 6 bits, which hold -31 .. 31, so that a row is three
// quarters of its int8 copy. docs/numerics.md says why not 4 or 5.
//
// A row is blocks of 64 columns, the last one padded with zeros; a block is 48 bytes. With code +
// 32 = 4 u + p, byte j < 32 holds u of columns j (bits 0-3) and 32 + j (bits 4-7); byte 32 + j, j <
// 16, holds p of columns j, 16 + j, 32 + j and 48 + j, from bit 0 on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace edgellm::cpu {

inline constexpr int kMaxHeadCode = 31;
inline constexpr int kHeadCodeOffset = 32;
inline constexpr int kHeadBlockColumns = 64;
inline constexpr int kHeadBlockBytes = 48;

inline size_t head_row_bytes(int cols) {
  return CertifiedHead::pitch_of(cols) / kHeadBlockColumns * kHeadBlockBytes;
}

// `codes` are kHeadBlockColumns of a row.
inline void pack_head_block(const int8_t* codes, uint8_t* block) {
  const auto biased = [&](int column) {
    return static_cast<unsigned>(codes[column] + kHeadCodeOffset);
  };
  for (int j = 0; j < 32; ++j) {
    block[j] = static_cast<uint8_t>(biased(j) >> 2 | biased(32 + j) >> 2 << 4);
  }
  for (int j = 0; j < 16; ++j) {
    block[32 + j] = static_cast<uint8_t>((biased(j) & 3) | (biased(16 + j) & 3) << 2 |
                                         (biased(32 + j) & 3) << 4 | (biased(48 + j) & 3) << 6);
  }
}

// The code of a column of a block.
inline int head_code(const uint8_t* block, int column) {
  const int upper = block[column % 32] >> (column / 32 * 4) & 15;
  const int lower = block[32 + column % 16] >> (column / 16 * 2) & 3;
  return 4 * upper + lower - kHeadCodeOffset;
}

}  // namespace edgellm::cpu
