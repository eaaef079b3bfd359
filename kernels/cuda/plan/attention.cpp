#include "kernels/cuda/plan/attention.h"

namespace edgellm::cuda {
namespace {

int dims_for(int head_dim) {
  return head_dim <= kHeadDims[0]   ? kHeadDims[0]
         : head_dim <= kHeadDims[1] ? kHeadDims[1]
                                    : kHeadDims[2];
}

// Bytes of the keys and values of `chunks` chunks, as the cache holds them.
size_t chunk_bytes(const AttentionSize& size, int chunks) {
  return 2 * static_cast<size_t>(chunks * kAttentionChunk * size.head_dim) *
         static_cast<size_t>(kv_element_bytes(size.type));
}

DecodePlan pick_decode(const AttentionSize& size, const DeviceTraits& device) {
  DecodePlan plan;
  plan.dims = dims_for(size.head_dim);
  plan.exact = size.head_dim == plan.dims;
  plan.slots = decode_slots(plan.dims, kv_element_bytes(size.type));
  // Less at a time where shared memory is small (compute capability 7.5: 64 KiB).
  while (plan.slots > 1 && chunk_bytes(size, plan.slots) > device.max_dynamic_shared) {
    plan.slots /= 2;
  }
  // All blocks have room at once, one on each SM.
  plan.launch.blocks[0] = size.states_chunks <= plan.slots
                              ? size.heads
                              : std::max(size.heads, std::min(size.kv_heads * size.states_chunks,
                                                              device.multiprocessors / size.rows));
  plan.launch.blocks[1] = size.rows;
  plan.launch.threads = kDecodeThreads;
  plan.launch.shared_bytes = chunk_bytes(size, plan.slots);
  return plan;
}

bool decode_takes(const AttentionSize& size, const DeviceTraits& device) {
  // A block for each head has an SM to itself. Where there are more of them, rows of many sequences
  // are better off without.
  const bool has_sms =
      size.heads * size.rows <= device.multiprocessors || size.decode_rows < size.rows;
  return size.rows <= size.states_rows && has_sms &&
         chunk_bytes(size, 1) <= device.max_dynamic_shared;
}

}  // namespace

BatchPlan pick_batch_attention(const AttentionSize& size, const DeviceTraits& device) {
  BatchPlan plan;
  const int dims = dims_for(size.head_dim);
  plan.exact = size.head_dim == dims;
  // A group of more than four heads in equal tiles of up to four; of two, a warp for each, where
  // that still leaves every block an SM of its own.
  const bool few = size.rows * size.kv_heads * divide_up(size.group(), 2) <= device.multiprocessors;
  plan.tile_heads = divide_up(size.group(), divide_up(size.group(), few ? 2 : 4));
  const int queries = plan.exact ? std::max(plan.tile_heads, 2) : 4;
  const bool shares = plan.exact && few;
  plan.cut = {dims, kv_element_bytes(size.type), shares ? 1 : queries, shares ? 2 : 1};

  const int head_tiles = divide_up(size.group(), plan.tile_heads);
  const int blocks = size.rows * size.kv_heads * head_tiles;
  const int blocks_per_sm =
      std::clamp((blocks - 1) / device.multiprocessors + 1, 1, plan.cut.max_blocks_per_sm());
  // Teams beyond the cache's chunks lend their memory.
  int teams = std::max(1, std::min(plan.cut.max_teams() / blocks_per_sm, 2 * size.cache_chunks));
  const auto bytes = [&] { return static_cast<size_t>(plan.cut.shared_bytes(teams)); };
  while (teams > 1 && bytes() > device.max_dynamic_shared) --teams;
  plan.launch.blocks[0] = size.rows;
  plan.launch.blocks[1] = size.kv_heads;
  plan.launch.blocks[2] = head_tiles;
  plan.launch.threads = plan.cut.team_threads() * teams;
  plan.launch.shared_bytes = bytes();
  return plan;
}

PrefillPlan pick_prefill_attention(const AttentionSize& size, const DeviceTraits& device) {
  PrefillPlan plan;
  const int dims = dims_for(size.head_dim);
  while (kPrefillCuts[plan.instance].dims != dims) ++plan.instance;
  const PrefillCut& cut = kPrefillCuts[plan.instance];
  plan.tile_heads = std::min(size.group(), cut.block_queries());
  const int head_tiles = divide_up(size.group(), plan.tile_heads);  // of a kv head
  // As many rows as fill the warps, but fewer where that leaves less than about two blocks for each
  // SM of a large GPU.
  const int most = cut.block_queries() / plan.tile_heads;
  plan.tile_rows = std::max(1, std::min(most, size.rows * size.kv_heads * head_tiles / 256));
  plan.multiprocessors = device.multiprocessors;
  plan.launch.blocks[0] = size.kv_heads * head_tiles * divide_up(size.rows, plan.tile_rows);
  plan.launch.threads = cut.threads();
  plan.launch.shared_bytes = static_cast<size_t>(cut.shared_bytes());
  return plan;
}

AttentionPlan pick_attention(const AttentionSize& size, const DeviceTraits& device) {
  AttentionPlan plan;
  if (decode_takes(size, device)) {
    plan.decode = pick_decode(size, device);
    return plan;
  }
  AttentionSize part = size;
  part.rows = size.decode_rows;
  if (part.rows > 0) plan.batch = pick_batch_attention(part, device);
  part.rows = size.rows - size.decode_rows;
  if (part.rows > 0) plan.prefill = pick_prefill_attention(part, device);
  return plan;
}

}  // namespace edgellm::cuda
