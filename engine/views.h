// The model's weight views as the kernels' views. The two folders do not know each other.
#pragma once

#include "base/error.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "model/weights.h"

namespace edgellm {

inline TernaryMatrix view(const TernaryTensor& tensor) {
  return {tensor.codes, tensor.scale.data(), static_cast<int>(tensor.scale.size()), tensor.rows,
          tensor.cols};
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

inline GateActivation view(Activation act) {
  return act == Activation::kRelu2 ? GateActivation::kRelu2 : GateActivation::kSilu;
}

}  // namespace edgellm
