// The kernels behind the ternary products, launched by plan (plan/linear.h). Each is instantiated
// for the three ops of linear_ops.cuh in the file that its comment names.
#pragma once

#include "kernels/cuda/device/quantise.cuh"
#include "kernels/cuda/linear_ops.cuh"

namespace edgellm::cuda {

// Where the codes of quantised rows are.
enum class CodeOrder {
  kRows,   // byte c of a row is column c
  kBlocks  // blocks of kBlockColumns columns as wgmma reads them
};

// Rows ("tokens") that quantise_rows() has quantised.
struct QuantisedRows {
  int8_t* codes;
  float* s;      // [tokens]
  float* r;      // [tokens]
  int32_t* sum;  // [tokens]
  size_t row_bytes;
  int tokens;  // CodeOrder::kBlocks; else 0

  // The byte of four columns from `column` on, a multiple of four.
  //
  // In blocks: [block of 128 columns][token][128 bytes], so that a tile of tokens is one piece of
  // memory. The 32 words of a row are transposed: word 8 t + q of the columns is word 4 q + t. Lane
  // t of four has columns 32 t .. 32 t + 31 of the weights, and wgmma takes the lanes' columns in
  // turns, four of each. The pieces of 16 bytes are swizzled with the token, as wgmma wants it for
  // rows of 128 bytes.
  __device__ size_t place(int token, int column) const {
    if (tokens == 0) return static_cast<size_t>(token) * row_bytes + static_cast<size_t>(column);
    const int word = column % kBlockColumns / 4;
    const int piece = word % 8 ^ token % 8;
    const size_t row = static_cast<size_t>(column / kBlockColumns) * static_cast<size_t>(tokens) +
                       static_cast<size_t>(token);
    return row * kBlockColumns + static_cast<size_t>(16 * piece + word / 8 * 4);
  }
};

// quantise.cu: into workspace.codes and its neighbours.
QuantisedRows quantise_rows(const QuantisePlan& plan, CodeOrder order, const Input& in, int rows,
                            const Workspace& workspace, cudaStream_t stream);

// `in` is the first of `rows` rows of activations. gemv.cu:
template <class Op>
void multiply(const ShortGemvPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream);
template <class Op>
void multiply(const LongGemvPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream);
// gemm_skinny.cu:
template <class Op>
void multiply(const SkinnyPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream);
// gemm.cu:
template <class Op>
void multiply(const GemmPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream);
// gemm_wgmma.cu:
template <class Op>
void multiply(const WgmmaGemmPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream);

}  // namespace edgellm::cuda
