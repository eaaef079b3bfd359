// attention: the dispatcher.
#include <algorithm>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/integer_sizes.h"

namespace edgellm::cuda {
namespace {

AttentionSize size_of(const AttentionArgs& args, const Workspace& workspace) {
  AttentionSize size;
  size.rows = args.rows;
  size.decode_rows = args.decode_rows;
  size.heads = args.heads;
  size.kv_heads = args.kv.kv_heads;
  size.head_dim = args.kv.head_dim;
  size.type = args.kv.type;
  size.appends = args.k != nullptr;
  const int capacity = args.kv.blocks_per_sequence * args.kv.block_size;
  const int reach = args.decode_reach > 0 ? std::min(args.decode_reach, capacity) : capacity;
  size.decode_chunks = divide_up(reach, kIntegerChunk);
  size.states_rows = workspace.attention_rows;
  size.states_chunks = workspace.max_chunks;
  return size;
}

// Rows first .. first + rows - 1.
AttentionArgs rows_of(const AttentionArgs& args, int first, int rows) {
  const auto values = [&](int heads) {
    return static_cast<size_t>(first) * static_cast<size_t>(heads * args.kv.head_dim);
  };
  AttentionArgs part = args;
  part.q += values(args.heads);
  if (args.k != nullptr) {
    part.k += values(args.kv.kv_heads);
    part.v += values(args.kv.kv_heads);
  }
  part.places.sequence += first;
  part.places.position += first;
  part.out += values(args.heads);
  part.rows = rows;
  return part;
}

// The codes of all queries, then their factors.
CodedQueries coded_queries(const AttentionArgs& args, const Workspace& workspace) {
  const size_t queries = static_cast<size_t>(args.rows) * static_cast<size_t>(args.heads);
  int8_t* codes = workspace.codes;
  return {codes, reinterpret_cast<float*>(
                     codes + queries * static_cast<size_t>(query_code_bytes(args.kv.tile_dims())))};
}

void attend(const AttentionArgs& args, const Workspace& workspace, const DeviceTraits& device,
            cudaStream_t stream) {
  const AttentionPlan plan = pick_attention(size_of(args, workspace), device);
  if (plan.floats) launch_attention(*plan.floats, args, stream);
  if (plan.decode) {
    launch_attention(*plan.decode, rows_of(args, 0, args.decode_rows), workspace, stream);
  }
  if (plan.code) {
    const AttentionArgs part = rows_of(args, args.decode_rows, args.rows - args.decode_rows);
    const CodedQueries queries = coded_queries(part, workspace);
    code_rows(*plan.code, part, queries, stream);
    const CodedRows rows{queries, part.kv, part.places, part.out, part.rows, part.heads};
    if (plan.wgmma) launch_attention(*plan.wgmma, rows, stream);
    if (plan.prefill) launch_attention(*plan.prefill, rows, stream);
  }
}

}  // namespace

void attention(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream) {
  attend(args, workspace, current_device(), stream);
}

void attention_without_wgmma(const AttentionArgs& args, const Workspace& workspace,
                             cudaStream_t stream) {
  DeviceTraits device = current_device();
  device.has_wgmma = false;
  attend(args, workspace, device, stream);
}

}  // namespace edgellm::cuda
