// attention: the dispatcher.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/launch.cuh"

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
  size.cache_chunks = args.kv.blocks_per_sequence * (args.kv.block_size / kAttentionChunk);
  size.states_rows = workspace.attention_rows;
  size.states_chunks = workspace.max_chunks;
  return size;
}

// Rows first .. first + rows - 1.
AttentionArgs rows_of(const AttentionArgs& args, int first, int rows) {
  const size_t values =
      static_cast<size_t>(first) * static_cast<size_t>(args.heads * args.kv.head_dim);
  AttentionArgs part = args;
  part.q += values;
  part.places.sequence += first;
  part.places.position += first;
  part.out += values;
  part.rows = rows;
  return part;
}

}  // namespace

void attention(const AttentionArgs& args, const Workspace& workspace, cudaStream_t stream) {
  const AttentionPlan plan = pick_attention(size_of(args, workspace), current_device());
  if (plan.decode) launch_attention(*plan.decode, args, workspace, stream);
  if (plan.batch) launch_attention(*plan.batch, rows_of(args, 0, args.decode_rows), stream);
  if (plan.prefill) {
    launch_attention(*plan.prefill, rows_of(args, args.decode_rows, args.rows - args.decode_rows),
                     stream);
  }
}

void attention_batch(const AttentionArgs& args, cudaStream_t stream) {
  launch_attention(pick_batch_attention(size_of(args, {}), current_device()), args, stream);
}

void attention_prefill(const AttentionArgs& args, cudaStream_t stream) {
  launch_attention(pick_prefill_attention(size_of(args, {}), current_device()), args, stream);
}

}  // namespace edgellm::cuda
