#include "engine/token_bytes.h"

namespace edgellm {

uint64_t weight_bytes_per_token(const ModelFile& model, uint64_t certified_head_bytes) {
  const bool is_tied = model.config().tied_head;
  uint64_t bytes = 0;
  for (const Section& section : model.sections()) {
    if (section.dtype == DType::kU8) continue;
    // One row of an embedding is read, which does not count.
    const bool is_embedding = section.name.starts_with("embedding");
    if (is_embedding && !is_tied) continue;
    const bool is_head = is_embedding || section.name.starts_with("head");
    if (is_head && certified_head_bytes > 0) continue;
    bytes += section.bytes;
  }
  return bytes + certified_head_bytes;
}

uint64_t kv_cache_bytes(const ModelConfig& config, int context, KvType type) {
  const auto head_bytes = static_cast<uint64_t>(
      2 * kv_element_bytes(type) * kv_tile_dims(type, config.head_dim) + kv_unit_bytes(type));
  return head_bytes * static_cast<uint64_t>(config.kv_heads) *
         static_cast<uint64_t>(config.layers) * static_cast<uint64_t>(context);
}

}  // namespace edgellm
