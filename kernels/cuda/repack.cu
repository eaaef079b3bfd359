// Ternary codes from the file's order to the GPU's (cuda.h).
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace edgellm::cuda {
namespace {

constexpr uint32_t kLowBits = 0x55555555u;  // the lower bit of every code

// Column 4 i + j, bits 2 j of byte i, goes to bits 2 i of byte j: a 4 x 4 transposition of two-bit
// elements, in two steps of swaps.
__device__ inline uint32_t transpose_codes(uint32_t w) {
  // Elements (i, j) and (j, i) that differ in the lowest bit of i and j are 6 bits apart, those
  // that differ in the higher bit 12.
  uint32_t swap = (w ^ (w >> 6)) & 0x00cc00ccu;
  w ^= swap ^ (swap << 6);
  swap = (w ^ (w >> 12)) & 0x0000f0f0u;
  return w ^ swap ^ (swap << 12);
}

// Words first, first + stride, ...
__device__ __forceinline__ void repack_words(uint32_t* words, size_t count, size_t first,
                                             size_t stride, int32_t* invalid) {
  int found = 0;
  for (size_t i = first; i < count; i += stride) {
    const uint32_t codes = words[i];
    const uint32_t low = codes & kLowBits;
    const uint32_t high = codes >> 1 & kLowBits;
    found += __popc(high & ~low);
    // 00, 01, 11 for 0, +1, -1 become 01, 10, 00.
    const uint32_t plus_one = (~(low | high) & kLowBits) | (low & ~high) << 1;
    words[i] = transpose_codes(plus_one);
  }
  if (found > 0) atomicAdd(invalid, found);
}

__global__ void repack_kernel(uint32_t* words, size_t count, int32_t* invalid) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  const size_t first = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  wait_for_previous();
  repack_words(words, count, first, stride, invalid);
}

}  // namespace

void repack(uint8_t* codes, int rows, int cols, int32_t* invalid, cudaStream_t stream) {
  const size_t count = static_cast<size_t>(rows) * ternary_pitch(cols) / sizeof(uint32_t);
  const size_t blocks = std::min<size_t>((count + kThreads - 1) / kThreads, 4096);
  launch(repack_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream,
         reinterpret_cast<uint32_t*>(codes), count, invalid);
}

}  // namespace edgellm::cuda
