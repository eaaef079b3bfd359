// The model's weight views as the kernels' views. The two folders do not know each other.
#pragma once

#include "base/error.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "model/weights.h"

namespace edgellm {

inline TernaryMatrix view(const TernaryTensor& tensor) {
  return {tensor.codes,
          tensor.scale.data(),
          static_cast<int>(tensor.scale.size()),
          tensor.rows,
          tensor.cols,
          tensor.group_scale,
          tensor.group_scale_dtype == DType::kF16 ? DenseType::kF16 : DenseType::kF32};
}

inline DenseMatrix view(const DenseTensor& tensor) {
  DenseType type = DenseType::kF32;
  switch (tensor.dtype) {
    case DType::kF32:
      break;
    case DType::kF16:
      type = DenseType::kF16;
      break;
    case DType::kBF16:
      type = DenseType::kBF16;
      break;
    default:
      require(false, "embedding or head of a type that the kernels do not know");
  }
  return {tensor.data, type, tensor.rows, tensor.cols};
}

// What an op reads, and the norm that it folds in.
struct NormedInput {
  const float* x;
  const float* gain;  // or null
  float eps;
};

// `values` [rows, width] through a norm of the layer (null: none). Where there is an input norm as
// well, that is the one to fold in, and norm(NormArgs) makes the layer's: into `out`, which may be
// `values`.
template <typename Norm>
NormedInput normed_input(const ModelConfig& config, float* values, int width, const float* gain,
                         const float* input_gain, float* out, int rows, const Norm& norm) {
  if (input_gain == nullptr) return {values, gain, config.norm_eps};
  if (gain == nullptr) return {values, input_gain, config.input_norm_eps};
  norm(NormArgs{values, gain, config.norm_eps, out, rows, width});
  return {out, input_gain, config.input_norm_eps};
}

inline Activations view(ActivationQuant quant) {
  return quant == ActivationQuant::kInt8Row ? Activations::kInt8Row : Activations::kInt16Group;
}

inline GateActivation view(Activation act) {
  return act == Activation::kRelu2 ? GateActivation::kRelu2 : GateActivation::kSilu;
}

}  // namespace edgellm
