// A kernel that does nothing but read.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace edgellm::bench {

// Reads n words of 16 bytes. *sink keeps the compiler from removing the loads; it changes only by
// chance.
void read_all(const uint4* words, size_t n, uint32_t* sink, cudaStream_t stream);

}  // namespace edgellm::bench
