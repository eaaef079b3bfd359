// What every backend's forward() shares: checking the caller's side of the contract, and turning a
// fault that the ops recorded into an error.
#pragma once

#include <cstdint>

#include "engine/backend.h"

namespace edgellm {

// Positions a sequence can hold: the option, or the model's maximum.
int context_of(const ModelFile& model, const EngineOptions& options);

// The KV cache of a backend whose sequences are contiguous: one block each.
struct ContiguousCache {
  int block_size = 0;      // the context rounded up to whole attention chunks
  size_t layer_bytes = 0;  // keys of one layer, or its values, for all sequences

  ContiguousCache(const ModelConfig& config, const EngineOptions& options, int context);
  // The view of a layer in `memory`, which holds per layer the keys and then the values.
  KvCache layer(int index, std::byte* memory, const int32_t* block_table, const ModelConfig& config,
                KvType type) const;
};

// Throws ContractViolation where ids, places or the sizes of the outputs are wrong.
void check_pass(const Batch& batch, const Outputs& outputs, const ModelConfig& config,
                const EngineOptions& options, int context);

// Throws Error (kRuntime) that names the layer, unless `fault` (kernels/ops.h) is 0.
void throw_on_fault(int32_t fault, const ModelFile& model);

}  // namespace edgellm
