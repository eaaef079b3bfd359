#include "apps/bench/ops/cuda/device_data.h"
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/integer_attention.h"

namespace edgellm::bench {
namespace {

using namespace edgellm::cuda;

// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
__device__ inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Random bits of element i of an array.
__device__ inline uint64_t random_bits(uint64_t seed, size_t i) { return mix(mix(seed) ^ i); }

struct TernaryCodes {
  uint32_t* to;
  __device__ void set(size_t i, uint64_t bits) const {
    uint32_t word = 0;
    for (int c = 0; c < 16; ++c) {
      const uint32_t code = static_cast<uint32_t>(bits >> (4 * c) & 15) * 3 >> 4;  // 0, 1, 2
      word |= code << (2 * c);
    }
    to[i] = word;
  }
};

// -1 .. 1
__device__ inline float uniform(uint64_t bits) {
  return static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f;
}

struct Floats {
  float* to;
  __device__ void set(size_t i, uint64_t bits) const { to[i] = uniform(bits); }
};
struct CacheCodes {
  int16_t* to;
  __device__ void set(size_t i, uint64_t bits) const {
    to[i] = static_cast<int16_t>(uniform(bits) * max_code(KvType::kI16));
  }
};
struct Bfloats {
  uint16_t* to;
  float scale;
  __device__ void set(size_t i, uint64_t bits) const {
    to[i] = static_cast<uint16_t>(float_to_bits(uniform(bits) * scale) >> 16);
  }
};

template <class Element>
__global__ void fill_kernel(Element element, size_t n, uint64_t seed) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    element.set(i, random_bits(seed, i));
  }
}

template <class Element>
void fill(Element element, size_t n, uint64_t seed, cudaStream_t stream) {
  // No early start: fill_kernel does not wait for the kernel before it.
  launch_at(Start::kAfterPrevious, fill_kernel<Element>,
            dim3(static_cast<unsigned>(multiprocessors() * 8)), dim3(kThreads), 0, stream, element,
            n, seed);
}

}  // namespace

void fill_ternary(uint32_t* words, size_t n, uint64_t seed, cudaStream_t stream) {
  fill(TernaryCodes{words}, n, seed, stream);
}
void fill_f32(float* values, size_t n, uint64_t seed, cudaStream_t stream) {
  fill(Floats{values}, n, seed, stream);
}
void fill_i16(int16_t* codes, size_t n, uint64_t seed, cudaStream_t stream) {
  fill(CacheCodes{codes}, n, seed, stream);
}
void fill_bf16(uint16_t* values, size_t n, float scale, uint64_t seed, cudaStream_t stream) {
  fill(Bfloats{values, scale}, n, seed, stream);
}

}  // namespace edgellm::bench
