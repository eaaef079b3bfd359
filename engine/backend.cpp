#include "engine/backend.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/pass.h"
#include "engine/token_bytes.h"

namespace edgellm {

void Backend::decode(int sequence, int32_t id, int position, int n_max,
                     const std::function<bool(int32_t id)>& on_token) {
  const int n_steps = std::min(n_max, info().context - position);
  bool continues = true;
  decode_rows({{&id, 1}, {&sequence, 1}, {&position, 1}}, n_steps,
              [&](std::span<const int32_t> chosen) {
                // The ids of a step that was under way when the run ended are dropped.
                if (continues) continues = on_token(chosen[0]) && chosen[0] >= 0;
                return continues;
              });
}

void Backend::decode_rows(const Batch& first, int n_max,
                          const std::function<bool(std::span<const int32_t> ids)>& on_ids) {
  std::vector<int32_t> ids(first.ids.begin(), first.ids.end());
  std::vector<int32_t> positions(first.positions.begin(), first.positions.end());
  std::vector<int32_t> chosen(ids.size());
  std::vector<int32_t> rows(ids.size());
  std::iota(rows.begin(), rows.end(), 0);
  Outputs outputs;
  outputs.rows = rows;
  outputs.ids = chosen;
  for (int step = 0; step < n_max; ++step) {
    forward({ids, first.sequences, positions}, outputs);
    if (!on_ids(chosen)) return;
    for (size_t row = 0; row < ids.size(); ++row) {
      ids[row] = std::max(chosen[row], 0);
      ++positions[row];
    }
  }
}

uint64_t kv_block_bytes(const ModelConfig& config, KvType type) {
  return kv_cache_bytes(config, kKvBlockPositions, type);
}

int cuda_kv_blocks(const ModelFile& model, const EngineOptions& options, uint64_t free_bytes) {
  EngineOptions one_block = options;
  one_block.kv_blocks = 1;
  const MemoryPlan plan = plan_cuda_memory(model, one_block);
  const uint64_t rest = plan.total() - plan.kv_cache;
  if (free_bytes <= rest) return 0;
  // What comes behind the cache starts at a multiple of 256 bytes. One block is the padding
  // sequence's (CacheLayout).
  const uint64_t left = (free_bytes - rest) / 256 * 256;
  const uint64_t blocks = left / kv_block_bytes(model.config(), options.kv_type);
  return static_cast<int>(
      std::min<uint64_t>(blocks == 0 ? 0 : blocks - 1, std::numeric_limits<int32_t>::max() - 1));
}

int cuda_fitting_rows(const ModelFile& model, const EngineOptions& options, uint64_t free_bytes) {
  EngineOptions smaller = options;
  while (smaller.max_rows / 2 >= std::max(kLeastGpuRows, options.sequences) &&
         plan_cuda_memory(model, smaller).total() > free_bytes) {
    smaller.max_rows /= 2;
  }
  return smaller.max_rows;
}

std::string cuda_memory_problem(const ModelFile& model, const EngineOptions& options,
                                uint64_t free_bytes) {
  const MemoryPlan plan = plan_cuda_memory(model, options);
  if (plan.total() <= free_bytes) return "";
  const auto mib = [](uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20); };
  const bool paged = options.kv_blocks > 0;
  const std::string needs =
      "the model needs " + mib(plan.total()) + " MiB on the GPU (" + mib(plan.weights) +
      " weights, " + (plan.certified_head > 0 ? mib(plan.certified_head) + " int8 head, " : "") +
      mib(plan.kv_cache) + " KV cache " +
      (paged ? "of " + std::to_string(options.kv_blocks) + " blocks"
             : "for a context of " + std::to_string(context_of(model, options))) +
      ", " + mib(plan.workspace) + " workspace), but " + std::to_string(free_bytes >> 20) +
      " MiB are free; " +
      (plan.certified_head > 0 && plan.total() - plan.certified_head <= free_bytes
           ? "it would fit with --full-head, or "
           : "");
  if (paged) {
    const int blocks = cuda_kv_blocks(model, options, free_bytes);
    return needs + (blocks > 0 ? "a KV cache of " + std::to_string(blocks) + " blocks would fit"
                               : "no KV cache would fit");
  }
  // The cache comes in whole attention chunks, and nothing needs less memory for a longer context.
  const auto fits = [&](int chunks) {
    EngineOptions smaller = options;
    smaller.context = chunks * kAttentionChunk;
    smaller.max_rows = std::min(options.max_rows, smaller.context);
    return plan_cuda_memory(model, smaller).total() <= free_bytes;
  };
  int fitting = 0;
  int too_many = (context_of(model, options) + kAttentionChunk - 1) / kAttentionChunk;
  while (fitting + 1 < too_many) {
    const int middle = fitting + (too_many - fitting) / 2;
    (fits(middle) ? fitting : too_many) = middle;
  }
  return needs + (fitting > 0
                      ? "a context of " + std::to_string(fitting * kAttentionChunk) +
                            " would fit (-c " + std::to_string(fitting * kAttentionChunk) + ")"
                      : "no context would fit");
}

}  // namespace edgellm
