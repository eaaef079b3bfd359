// The ternary products of a layer as an engine without fusion would run them on a GPU. The fused
// ops are compared with them. The norm, the quantisation, every matrix, RoPE, the activation and
// the addition to the residual stream are a kernel each.
//
// Args, arithmetic and bits are those of the fused ops (kernels/ops.h). Values that are not finite
// are not reported. All intermediate rows go through memory. Every kernel is launched like the
// fused ones (kernels/cuda/device/launch.cuh) and fetches its first weights before the kernel
// before it has ended.
#pragma once

#include "kernels/cuda/cuda.h"

namespace edgellm::bench {

// Intermediate rows. `widest` is the largest of dim, heads * head_dim and ffn.
struct UnfusedRows {
  float* normed = nullptr;   // [rows, widest] x * gain
  float* rms = nullptr;      // [rows] RMS factor
  int8_t* codes = nullptr;   // [rows, cuda::quantised_row_bytes(widest)]
  float* s = nullptr;        // [rows] codes per unit
  int32_t* sum = nullptr;    // [rows] of the codes
  float* product = nullptr;  // [rows, widest]
  float* other = nullptr;    // [rows, widest] of the second matrix
};

// Columns must be multiples of 4.
void unfused_qkv(const QkvArgs& args, const UnfusedRows& between, cudaStream_t stream);
void unfused_project(const ProjectArgs& args, const UnfusedRows& between, cudaStream_t stream);
void unfused_ffn_up(const FfnUpArgs& args, const UnfusedRows& between, cudaStream_t stream);

}  // namespace edgellm::bench
