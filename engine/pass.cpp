#include "engine/pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/number_format.h"
#include "engine/kv_type.h"
#include "kernels/integer_sizes.h"

namespace edgellm {

int context_of(const ModelFile& model, const EngineOptions& options) {
  return options.context > 0 ? options.context : model.config().max_context;
}

BackendInfo info_of(const ModelFile& model, const EngineOptions& options, std::string device,
                    bool is_gpu) {
  require(options.sequences >= 1 && options.max_rows >= 1, "a backend needs a row and a sequence");
  return {.device = std::move(device),
          .is_gpu = is_gpu,
          .context = context_of(model, options),
          .sequences = options.sequences,
          .kv_blocks = options.kv_blocks,
          .max_rows = options.max_rows};
}

CacheLayout::CacheLayout(const ModelConfig& config, const EngineOptions& options, int context) {
  const int chunks = (context + kAttentionChunk - 1) / kAttentionChunk;
  const bool paged = options.kv_blocks > 0;
  block_size = paged ? kKvBlockPositions : chunks * kAttentionChunk;
  blocks = paged ? options.kv_blocks + 1 : options.sequences;
  table_rows = options.sequences + (paged ? 1 : 0);
  blocks_per_sequence = (context + block_size - 1) / block_size;
  if (is_coded(options.kv_type) && config.head_dim > kMaxIntegerHeadDim) {
    throw Error(ExitCode::kUnsupported,
                "the model's heads have " + std::to_string(config.head_dim) +
                    " dimensions, but KV type " + to_string(options.kv_type) + " takes at most " +
                    std::to_string(kMaxIntegerHeadDim) + "; use --kv-type f32");
  }
  const size_t positions = static_cast<size_t>(blocks) * static_cast<size_t>(block_size);
  layer_bytes = positions * static_cast<size_t>(config.kv_heads) *
                static_cast<size_t>(kv_tile_dims(options.kv_type, config.head_dim)) *
                static_cast<size_t>(kv_element_bytes(options.kv_type));
  unit_bytes = positions * static_cast<size_t>(config.kv_heads) *
               static_cast<size_t>(kv_unit_bytes(options.kv_type));
}

KvCache CacheLayout::layer(int index, std::byte* memory, const int32_t* block_table,
                           const ModelConfig& config, KvType type) const {
  std::byte* keys = memory + bytes(index);
  return {keys,
          keys + layer_bytes,
          block_table,
          blocks_per_sequence,
          block_size,
          config.kv_heads,
          config.head_dim,
          type,
          unit_bytes == 0 ? nullptr : reinterpret_cast<float*>(keys + 2 * layer_bytes)};
}

BlockTable::BlockTable(const CacheLayout& layout, const EngineOptions& options)
    : block_size_(layout.block_size),
      pool_blocks_(options.kv_blocks),
      sequences_(options.sequences),
      blocks_per_sequence_(static_cast<size_t>(layout.blocks_per_sequence)),
      entries_(static_cast<size_t>(layout.table_rows) * blocks_per_sequence_, -1) {
  if (pool_blocks_ == 0) {
    std::iota(entries_.begin(), entries_.end(), 0);
  } else {
    entries_[static_cast<size_t>(sequences_) * blocks_per_sequence_] = pool_blocks_;
  }
}

void BlockTable::set(int sequence, std::span<const int32_t> blocks) {
  require(pool_blocks_ > 0, "the blocks of a cache without a pool cannot be set");
  require(sequence >= 0 && sequence < sequences_, "a sequence slot is outside the cache");
  require(blocks.size() <= blocks_per_sequence_, "a sequence has more blocks than its context");
  for (const int32_t block : blocks) {
    require(block >= 0 && block < pool_blocks_, "a block is outside the pool");
  }
  const auto row = entries_.begin() +
                   static_cast<ptrdiff_t>(static_cast<size_t>(sequence) * blocks_per_sequence_);
  std::fill(std::copy(blocks.begin(), blocks.end(), row),
            row + static_cast<ptrdiff_t>(blocks_per_sequence_), -1);
}

bool BlockTable::covers(int sequence, int position) const {
  return entries_[static_cast<size_t>(sequence) * blocks_per_sequence_ +
                  static_cast<size_t>(position / block_size_)] >= 0;
}

void check_pass(const Batch& batch, const Outputs& outputs, const ModelConfig& config,
                const BackendInfo& info, const BlockTable& table) {
  const size_t rows = batch.ids.size();
  require(rows >= 1 && rows <= static_cast<size_t>(info.max_rows),
          "a pass has between one and max_rows rows");
  require(batch.positions.size() == rows && batch.sequences.size() == rows,
          "a batch's arrays have one entry a row");
  // A row that continues the row before it, within a tile, lies in the same block: blocks are whole
  // tiles. Most rows of prompts do, so that the table is read once for many rows.
  const auto continues_row = [&](size_t i) {
    return i > 0 && batch.sequences[i] == batch.sequences[i - 1] &&
           batch.positions[i] == batch.positions[i - 1] + 1 &&
           batch.positions[i] % kAttentionChunk != 0;
  };
  for (size_t i = 0; i < rows; ++i) {
    require(batch.ids[i] >= 0 && batch.ids[i] < config.vocab,
            "a token id is outside the vocabulary");
    require(batch.positions[i] >= 0 && batch.positions[i] < info.context,
            "a position is outside the context");
    if (continues_row(i)) continue;
    require(batch.sequences[i] >= 0 && batch.sequences[i] < info.sequences,
            "a sequence slot is outside the cache");
    require(table.covers(batch.sequences[i], batch.positions[i]),
            "a position lies in a block that its sequence was not given");
  }
  require(outputs.rows.size() <= rows, "there are more output rows than rows");
  for (int32_t row : outputs.rows) {
    require(row >= 0 && static_cast<size_t>(row) < rows, "an output row is not in the batch");
  }
  const size_t vocab = static_cast<size_t>(config.vocab);
  const size_t wanted = outputs.rows.size();
  require(outputs.logits.size() % vocab == 0, "logits are [output rows, vocab]");
  const size_t n_logits = outputs.logits.size() / vocab;
  const size_t n_ids = outputs.ids.size();
  require((n_ids == wanted && n_logits == wanted) || n_ids + n_logits == wanted,
          "all output rows give an id and logits, or each one of them");
  require(outputs.logprobs.empty() || outputs.logprobs.size() == n_ids,
          "each id has its log-probability, or none");
  require(
      outputs.top.size() <= outputs.logprobs.size() * std::min(vocab, size_t{kMaxTopLogprobs}) &&
          (outputs.top.empty() || outputs.top.size() % outputs.logprobs.size() == 0),
      "there are more of the largest logits than kMaxTopLogprobs for each id");
  require(outputs.hidden.empty() ||
              outputs.hidden.size() ==
                  static_cast<size_t>(config.layers + 1) * rows * static_cast<size_t>(config.dim),
          "hidden states are [layers + 1, rows, dim]");
  require(outputs.normed.empty() || outputs.normed.size() == rows * static_cast<size_t>(config.dim),
          "the final norm's output is [rows, dim]");
}

std::vector<float*> normed_outputs(const Outputs& outputs, size_t values) {
  std::vector<float*> places;
  if (!outputs.hidden.empty()) {
    places.push_back(outputs.hidden.data() + outputs.hidden.size() - values);
  }
  if (!outputs.normed.empty()) places.push_back(outputs.normed.data());
  return places;
}

size_t ids_only_rows(const Outputs& outputs, const ModelConfig& config) {
  return outputs.rows.size() - outputs.logits.size() / static_cast<size_t>(config.vocab);
}

std::vector<int32_t> choosing_sequences(const Batch& batch, const Outputs& outputs) {
  std::vector<int32_t> sequences;
  sequences.reserve(outputs.ids.size());
  for (const int32_t row : outputs.rows.first(outputs.ids.size())) {
    sequences.push_back(batch.sequences[static_cast<size_t>(row)]);
  }
  return sequences;
}

void log_backend(const Backend& backend) {
  if (!log_enabled(LogLevel::kDebug)) return;
  const BackendInfo& info = backend.info();
  const MemoryPlan memory = backend.memory();
  log(LogLevel::kDebug,
      "backend on " + info.device + ": context " + std::to_string(info.context) + ", " +
          std::to_string(info.sequences) + (info.sequences == 1 ? " sequence, " : " sequences, ") +
          std::to_string(info.max_rows) + " rows a pass, " +
          (info.kv_blocks > 0 ? std::to_string(info.kv_blocks) + " KV blocks, " : "") +
          "memory: " + human_bytes(memory.weights) + " weights, " +
          human_bytes(memory.certified_head) + " certified head, " + human_bytes(memory.kv_cache) +
          " KV cache, " + human_bytes(memory.workspace) + " workspace");
}

void throw_on_fault(int32_t fault, const ModelFile& model) {
  if (fault == 0) return;
  const std::string where =
      fault > model.config().layers ? "the logits" : "layer " + std::to_string(fault - 1);
  throw NotFiniteError("a value in " + where + " is not finite (NaN or infinity): the weights of " +
                       model.path() + " do not fit together; `edgellm verify` tells more");
}

}  // namespace edgellm
