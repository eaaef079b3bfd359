#include "kernels/cuda/plan/attention.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "kernels/integer_sizes.h"

namespace edgellm::cuda {
namespace {

int dims_for(int head_dim) {
  const auto* dims = std::find_if(std::begin(kHeadDims), std::end(kHeadDims),
                                  [&](int n) { return n >= head_dim; });
  require(dims != std::end(kHeadDims), "a head has more dimensions than any kernel has room for");
  return *dims;
}

size_t tile_bytes(KvType type, int head_dim, int slots) {
  return static_cast<size_t>(slots) *
         static_cast<size_t>(code_tile_bytes(kv_tile_dims(type, head_dim), digit_count(type)));
}

// Whether so many tiles of the cache fit beside `other_bytes`.
bool slots_fit(KvType type, int head_dim, int slots, size_t other_bytes,
               const DeviceTraits& device) {
  return tile_bytes(type, head_dim, slots) + other_bytes <= device.max_dynamic_shared;
}

// 4 or 2, if they fit; or 0.
int slots_for(KvType type, int head_dim, size_t other_bytes, const DeviceTraits& device) {
  return slots_fit(type, head_dim, 4, other_bytes, device)   ? 4
         : slots_fit(type, head_dim, 2, other_bytes, device) ? 2
                                                             : 0;
}

size_t prefill_other_bytes(KvType type, int head_dim) {
  return static_cast<size_t>(prefill_queries(dims_for(head_dim)) *
                             query_code_bytes(kv_tile_dims(type, head_dim))) +
         kPrefillExtraBytes;
}

// Blocks of a decode launch of `warps` warps that an SM has room for.
int decode_room(const DecodePlan& plan, int warps, const DeviceTraits& device) {
  const size_t memory = (device.max_dynamic_shared + kMostStaticShared) /
                        (plan.launch.shared_bytes + kReservedShared);
  return std::clamp(static_cast<int>(memory), 1, decode_blocks_per_sm(plan.slabs, warps));
}

// The blocks of a cluster that share the context of a row and kv head must be so many to be faster
// than blocks that leave states; 0: they never are. As measured (docs/ladder.md, A16 to A22).
int fewest_cluster_blocks(const AttentionSize& size, const DecodePlan& plan, int rows,
                          const DeviceTraits& device) {
  constexpr int kManyContexts = 8;
  const int contexts = rows * size.kv_heads;
  if (!device.has_clusters || plan.columns != 1 || plan.slabs > kClusterSlabs) return 0;
  if (size.decode_chunks < kShortChunks || size.decode_chunks > kLongClusterChunks) return 0;
  // Of a short context of a few rows the exchange costs what it saves.
  if (size.decode_chunks == kShortChunks) {
    return rows == 1 || 4 * contexts >= device.multiprocessors ? 2 : 0;
  }
  if (size.decode_chunks <= kClusterChunks) return 2;
  if (plan.slabs <= kFewDecodeSlabs) return kLargeClusterBlocks;
  return contexts >= kManyContexts ? kClusterBlocks : 0;
}

DecodePlan pick_decode(const AttentionSize& size, int rows, const DeviceTraits& device) {
  DecodePlan plan;
  const int slabs = kv_tile_dims(size.type, size.head_dim) / kSlabDims;
  plan.slabs = slabs <= 4 ? slabs : dims_for(size.head_dim) / kSlabDims;
  plan.columns = size.group() <= 4 ? 1 : 2;
  const int heads = size.kv_heads * divide_up(size.group(), 4 * plan.columns);
  const auto other = [&](int round, int warps) {
    return static_cast<size_t>(
        decode_extra_bytes(kSlabDims * plan.slabs, plan.columns, round, warps, plan.sent));
  };
  const auto take_warps = [&](int warps) {
    plan.round = 1;
    plan.launch.threads = 32 * warps;
    plan.slots = slots_for(size.type, size.head_dim, other(1, warps), device);
    require(plan.slots > 0, "a head's tiles do not fit into shared memory");
    plan.launch.shared_bytes = tile_bytes(size.type, size.head_dim, plan.slots) + other(1, warps);
    return decode_room(plan, warps, device);
  };
  plan.launch.blocks[1] = heads;
  plan.launch.blocks[2] = rows;
  // Blocks of a cluster have a chunk each where there is room for so many at once.
  if (const int least = fewest_cluster_blocks(size, plan, rows, device)) {
    plan.sent = sent_chunks(size.decode_chunks);
    const int room = device.multiprocessors * take_warps(kDecodeWarps);
    int blocks = 2;
    while (blocks < size.decode_chunks) blocks *= 2;
    // A large cluster waits until so many SMs that are neighbours have room.
    const int large_room = device.has_large_clusters ? room * 3 / 4 : 0;
    const auto fits = [&] {
      return blocks * rows * heads <= (blocks > kClusterBlocks ? large_room : room);
    };
    while (blocks >= least && !fits()) blocks /= 2;
    if (plan.slots == 4 && blocks >= least) {
      plan.launch.blocks[0] = blocks;
      return plan;
    }
    plan.sent = 0;
  }
  // Otherwise a block has both chunks of a short context, and an SM to itself. Blocks of the
  // kernels behind it would take its issue slots. Where it leaves no SM free they start when a
  // block has ended, which is still faster (docs/ladder.md, W5).
  const bool is_short = size.decode_chunks <= kShortChunks && plan.columns == 1 &&
                        rows * heads <= device.multiprocessors;
  if (is_short && slots_fit(size.type, size.head_dim, 8, other(2, kDecodeWarps), device)) {
    plan.round = 2;
    plan.slots = 8;
    plan.launch.threads = 32 * kDecodeWarps;
    plan.launch.shared_bytes = device.max_dynamic_shared;
    return plan;
  }
  int room = take_warps(kDecodeWarps);
  if (plan.slabs <= kFewDecodeSlabs && plan.columns == 1 &&
      rows * heads > device.multiprocessors * room) {
    const int small_room = take_warps(kFewDecodeWarps);
    room =
        small_room * kFewDecodeWarps >= room * kDecodeWarps ? small_room : take_warps(kDecodeWarps);
  }
  // As many blocks as there is room for at once, a chunk each at most. Where every SM has a block
  // anyway, sharing the few chunks of a short context costs more than it saves.
  const bool shares = size.decode_chunks > kShortChunks || rows * heads <= device.multiprocessors;
  if (rows <= size.states_rows && shares) {
    plan.launch.blocks[0] = std::clamp(device.multiprocessors * room / (rows * heads), 1,
                                       std::min(size.decode_chunks, size.states_chunks));
  }
  return plan;
}

CodePlan pick_code(const AttentionSize& size, int rows) {
  CodePlan plan;
  plan.dims = dims_for(size.head_dim);
  plan.launch.blocks[0] = divide_up(rows, kRowsCodedTogether);
  plan.launch.blocks[1] = size.heads + (size.appends ? 2 * size.kv_heads : 0);
  plan.in_lanes = size.head_dim == plan.dims;
  plan.launch.threads = plan.in_lanes ? kRowsCodedTogether * plan.dims / 8 : 256;
  return plan;
}

PrefillPlan pick_prefill(const AttentionSize& size, int rows, const DeviceTraits& device) {
  PrefillPlan plan;
  plan.dims = dims_for(size.head_dim);
  const size_t other = prefill_other_bytes(size.type, size.head_dim);
  plan.slots = slots_for(size.type, size.head_dim, other, device);
  require(plan.slots > 0, "a head's tiles do not fit into shared memory");
  plan.launch.shared_bytes = tile_bytes(size.type, size.head_dim, plan.slots) + other;
  plan.launch.blocks[0] = size.kv_heads;
  plan.launch.blocks[1] = divide_up(rows * size.group(), prefill_queries(plan.dims));
  plan.launch.threads = 2 * prefill_queries(plan.dims);
  return plan;
}

WgmmaPlan pick_wgmma(const AttentionSize& size, int rows, const DeviceTraits& device) {
  WgmmaPlan plan;
  plan.slabs = kv_tile_dims(size.type, size.head_dim) / kSlabDims;
  const int tiles = divide_up(rows * size.group(), 64);
  // As many warpgroups a block as leave a block for every SM.
  plan.groups = std::clamp(tiles * size.kv_heads / device.multiprocessors, 1, 3);
  plan.launch.blocks[0] = size.kv_heads;
  plan.launch.blocks[1] = divide_up(tiles, plan.groups);
  plan.launch.threads = 128 * (plan.groups + 1);
  plan.launch.shared_bytes =
      static_cast<size_t>(wgmma_shared_bytes(plan.slabs, digit_count(size.type), plan.groups));
  return plan;
}

FloatPlan pick_float(const AttentionSize& size) {
  FloatPlan plan;
  plan.launch.blocks[0] = size.heads;
  plan.launch.blocks[1] = size.rows;
  plan.launch.threads = 256;
  return plan;
}

}  // namespace

bool attention_fits(KvType type, int head_dim, const DeviceTraits& device) {
  if (!is_coded(type)) return true;
  return slots_for(type, head_dim, prefill_other_bytes(type, head_dim), device) > 0 &&
         slots_for(type, head_dim,
                   static_cast<size_t>(decode_extra_bytes(dims_for(head_dim), 2, 1, kDecodeWarps)),
                   device) > 0;
}

AttentionPlan pick_attention(const AttentionSize& size, const DeviceTraits& device) {
  AttentionPlan plan;
  if (!is_coded(size.type)) {
    plan.floats = pick_float(size);
    return plan;
  }
  if (size.decode_rows > 0) plan.decode = pick_decode(size, size.decode_rows, device);
  const int others = size.rows - size.decode_rows;
  if (others > 0) {
    plan.code = pick_code(size, others);
    if (device.has_wgmma && size.head_dim <= kWgmmaMaxSlabs * kSlabDims) {
      plan.wgmma = pick_wgmma(size, others, device);
    } else {
      plan.prefill = pick_prefill(size, others, device);
    }
  }
  return plan;
}

}  // namespace edgellm::cuda
