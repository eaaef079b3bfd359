#include "engine/token_bytes.h"

namespace edgellm {

uint64_t weight_bytes_per_token(const ModelFile& model, uint64_t certified_head_bytes) {
  const DenseTensor& embedding = model.weights().embedding;
  uint64_t bytes = 0;
  for (const Section& section : model.sections()) {
    if (section.dtype != DType::kU8) bytes += section.bytes;
  }
  const auto bytes_of = [](const DenseTensor& tensor) {
    const uint64_t element_bytes = tensor.dtype == DType::kF32 ? 4 : 2;
    return element_bytes * static_cast<uint64_t>(tensor.rows) * static_cast<uint64_t>(tensor.cols);
  };
  if (!model.config().tied_head) bytes -= bytes_of(embedding);
  if (certified_head_bytes > 0) bytes += certified_head_bytes - bytes_of(model.weights().head);
  return bytes;
}

uint64_t kv_cache_bytes(const ModelConfig& config, int context, KvType type) {
  const auto head_bytes = static_cast<uint64_t>(
      2 * kv_element_bytes(type) * kv_tile_dims(type, config.head_dim) + kv_unit_bytes(type));
  return head_bytes * static_cast<uint64_t>(config.kv_heads) *
         static_cast<uint64_t>(config.layers) * static_cast<uint64_t>(context);
}

}  // namespace edgellm
