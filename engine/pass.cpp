#include "engine/pass.h"

#include "base/error.h"

namespace edgellm {

int context_of(const ModelFile& model, const EngineOptions& options) {
  return options.context > 0 ? options.context : model.config().max_context;
}

ContiguousCache::ContiguousCache(const ModelConfig& config, const EngineOptions& options,
                                 int context)
    : block_size((context + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk),
      layer_bytes(static_cast<size_t>(options.sequences) * static_cast<size_t>(block_size) *
                  static_cast<size_t>(config.kv_dim()) *
                  (options.kv_type == KvType::kF16 ? 2 : 4)) {}

KvCache ContiguousCache::layer(int index, std::byte* memory, const int32_t* block_table,
                               const ModelConfig& config, KvType type) const {
  std::byte* keys = memory + 2 * static_cast<size_t>(index) * layer_bytes;
  return {keys,       keys + layer_bytes, block_table,     1,
          block_size, config.kv_heads,    config.head_dim, type};
}

void check_pass(const Batch& batch, const Outputs& outputs, const ModelConfig& config,
                const EngineOptions& options, int context) {
  const size_t rows = batch.ids.size();
  require(rows >= 1 && rows <= static_cast<size_t>(options.max_rows),
          "a pass has between one and max_rows rows");
  require(batch.positions.size() == rows && batch.sequences.size() == rows,
          "a batch's arrays have one entry a row");
  for (size_t i = 0; i < rows; ++i) {
    require(batch.ids[i] >= 0 && batch.ids[i] < config.vocab,
            "a token id is outside the vocabulary");
    require(batch.positions[i] >= 0 && batch.positions[i] < context,
            "a position is outside the context");
    require(batch.sequences[i] >= 0 && batch.sequences[i] < options.sequences,
            "a sequence slot is outside the cache");
  }
  require(outputs.rows.size() <= rows, "there are more output rows than rows");
  for (int32_t row : outputs.rows) {
    require(row >= 0 && static_cast<size_t>(row) < rows, "an output row is not in the batch");
  }
  for (int32_t id : outputs.banned) {
    require(id >= 0 && id < config.vocab, "a banned id is outside the vocabulary");
  }
  const size_t vocab = static_cast<size_t>(config.vocab);
  require(outputs.banned.size() <= vocab, "more ids are banned than there are");
  require(outputs.argmax.empty() || outputs.argmax.size() == outputs.rows.size(),
          "arg-max has one entry an output row");
  require(outputs.logits.empty() || outputs.logits.size() == outputs.rows.size() * vocab,
          "logits are [output rows, vocab]");
  require(outputs.hidden.empty() ||
              outputs.hidden.size() ==
                  static_cast<size_t>(config.layers + 1) * rows * static_cast<size_t>(config.dim),
          "hidden states are [layers + 1, rows, dim]");
}

void throw_on_fault(int32_t fault, const ModelFile& model) {
  if (fault == 0) return;
  const std::string where =
      fault > model.config().layers ? "the logits" : "layer " + std::to_string(fault - 1);
  throw Error(ExitCode::kRuntime,
              "a value in " + where + " is not finite (NaN or infinity): the weights of " +
                  model.path() + " do not fit together; `edgellm verify` tells more");
}

}  // namespace edgellm
