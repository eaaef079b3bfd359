// Random operands made on the GPU: gigabytes of weights would take the host minutes.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace edgellm::bench {

// Ternary codes in the GPU's own order (kernels/cuda/cuda.h): -1, 0, +1 about equally often.
void fill_ternary(uint32_t* words, size_t n, uint64_t seed, cudaStream_t stream);

// Uniform in -1 .. 1.
void fill_f32(float* values, size_t n, uint64_t seed, cudaStream_t stream);

// Codes of keys or values of the KV type i16, uniform.
void fill_i16(int16_t* codes, size_t n, uint64_t seed, cudaStream_t stream);

// Uniform in -scale .. scale, cut to bfloat16.
void fill_bf16(uint16_t* values, size_t n, float scale, uint64_t seed, cudaStream_t stream);

}  // namespace edgellm::bench
