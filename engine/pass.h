// What all backends share: the layout of the KV cache, the check of the caller's side of forward(),
// and the error for a fault that the ops recorded.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/backend.h"

namespace edgellm {

// Positions a sequence can hold: the option, or the model's maximum.
int context_of(const ModelFile& model, const EngineOptions& options);

// The info of a backend with these options.
BackendInfo info_of(const ModelFile& model, const EngineOptions& options, std::string device,
                    bool is_gpu);

// The KV cache of a backend: a pool of blocks (EngineOptions::kv_blocks), or one big block for each
// sequence.
//
// A pool has one block more than its sequences can be given, and its block table one sequence more:
// the padding sequence, which holds that block. Its rows pad a pass to the size of a captured
// graph.
struct CacheLayout {
  int block_size = 0;  // positions: kKvBlockPositions, or the context in whole attention chunks
  int blocks = 0;      // the padding sequence's included
  int table_rows = 0;  // sequences, the padding sequence included
  int blocks_per_sequence = 0;
  size_t layer_bytes = 0;  // keys of one layer, or its values, of all blocks
  size_t unit_bytes = 0;   // of one layer: KvCache::units

  size_t bytes(int layers) const {
    return static_cast<size_t>(layers) * (2 * layer_bytes + unit_bytes);
  }

  CacheLayout(const ModelConfig& config, const EngineOptions& options, int context);
  // The view of a layer in `memory`, which holds for each layer the keys, the values and their
  // units. It begins as zeros: units of positions that no row has written must be finite.
  KvCache layer(int index, std::byte* memory, const int32_t* block_table, const ModelConfig& config,
                KvType type) const;
};

// The host's block table (KvCache), -1 where a sequence has no block.
class BlockTable {
 public:
  BlockTable(const CacheLayout& layout, const EngineOptions& options);

  // Backend::set_blocks().
  void set(int sequence, std::span<const int32_t> blocks);
  bool covers(int sequence, int position) const;
  std::span<const int32_t> entries() const { return entries_; }

 private:
  int block_size_;
  int pool_blocks_;  // 0: no pool
  int sequences_;
  size_t blocks_per_sequence_;
  std::vector<int32_t> entries_;  // [table_rows, blocks_per_sequence]
};

// Throws ContractViolation where ids, positions or the sizes of the outputs are wrong.
void check_pass(const Batch& batch, const Outputs& outputs, const ModelConfig& config,
                const BackendInfo& info, const BlockTable& table);

// Where the final norm's output of all rows of the batch, `values` floats, is wanted.
std::vector<float*> normed_outputs(const Outputs& outputs, size_t values);

// How many of the output rows, the first ones, give an id and no logits.
size_t ids_only_rows(const Outputs& outputs, const ModelConfig& config);

// The sequence of each row that gives an id.
std::vector<int32_t> choosing_sequences(const Batch& batch, const Outputs& outputs);

// A debug line: what a new backend is and how much memory it has allocated.
void log_backend(const Backend& backend);

// Throws NotFiniteError, which names the layer, unless `fault` (kernels/ops.h) is 0.
void throw_on_fault(int32_t fault, const ModelFile& model);

}  // namespace edgellm
