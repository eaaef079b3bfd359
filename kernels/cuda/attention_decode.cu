// Attention over codes of rows that are each alone in their sequence (decode): FlashDecoding in
// integers (docs/numerics.md, "Attention in integers").
//
// A block takes a run of chunks of one row for the query heads of a kv head, or for a tile of them.
// The keys and values of a chunk are the rows of products on the tensor cores; the columns are the
// digits of the queries, later those of the weights. A block that takes all chunks of a row merges
// them as it goes. Otherwise each leaves the states of its chunks in the workspace, and the last
// blocks of the row to end merge them, a head at a time. Blocks of a cluster that share a context
// need no workspace: they send their chunks to the first, which merges them.
//
// The rows of this pass are coded here: queries by every block, a key and a value by the block that
// takes the last chunk of a row. It also writes them to the cache. Chunks of earlier steps are
// fetched before the previous kernel has ended. A warm-up as in gemv.cu made it slower
// (docs/ladder.md).
#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_decode_chunk.cuh"
#include "kernels/cuda/attention_decode_merge.cuh"
#include "kernels/cuda/attention_decode_rows.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace edgellm::cuda {
namespace {

// The next kernel starts late in contexts of at most kLateStartChunks chunks, and in those that a
// cluster shares (docs/ladder.md).
constexpr int kLateStartChunks = 4;

// Worker `worker` of the at most `workers` of a row and a tile of the heads of a kv head.
template <class D>
__device__ __forceinline__ DecodeItem item_of(const AttentionArgs& args, int worker, int workers,
                                              int kv_and_tile, int row) {
  const int group = args.heads / args.kv.kv_heads;
  const int head_tiles = (group + D::kHeads - 1) / D::kHeads;
  DecodeItem item;
  item.row = row;
  item.kv_head = kv_and_tile / head_tiles;
  const int first_of_group = kv_and_tile % head_tiles * D::kHeads;
  item.first_head = item.kv_head * group + first_of_group;
  item.heads = min(D::kHeads, group - first_of_group);
  // Places are inputs of the step, written before its first kernel starts.
  item.sequence = args.places.sequence[row];
  item.position = args.places.position[row];
  item.chunks = item.position / kIntegerChunk + 1;
  // Chunks of one round a block takes alone: leaving states to others takes longer.
  item.workers = item.chunks <= D::kRound ? 1 : min(workers, item.chunks);
  // The first block of a cluster also takes contexts that are longer than planned for.
  if (D::kInCluster && item.chunks - item.first_end() > D::kSent) item.workers = 1;
  item.begin = item.chunks * worker / item.workers;
  item.end = item.chunks * (worker + 1) / item.workers;
  return item;
}

// Leaves the sums of values of chunk u of a round: those of head h at to + h * head_states.
template <class D>
__device__ __forceinline__ void leave_sums(const ValueSums<D>& sums, int u, int heads, int head_dim,
                                           float* to, size_t head_states) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int n = 0; n < D::kColumns; ++n) {
    const int head = 4 * n + t;
    if (head >= heads) break;
    float* of_head = to + static_cast<size_t>(head) * head_states;
#pragma unroll
    for (int i = 0; i < D::kDimTiles; ++i) {
      const int d = 16 * (warp + D::kWarps * i) + g;
      if (d < head_dim) of_head[d] = sums.of[u][i][n][0];
      if (d + 8 < head_dim) of_head[d + 8] = sums.of[u][i][n][1];
    }
  }
}

// All chunks of the item: each into `merged`. Where the row has several workers its state goes into
// the workspace instead, or from other blocks of a cluster to the first. `meets_copies`: this
// thread has written to the cache what copies of later chunks read.
template <class D>
__device__ __forceinline__ void attend_chunks(const typename D::Stream& stream,
                                              const DecodeItem& item, float* states,
                                              size_t head_states, int state_size, int head_dim,
                                              int slabs, bool meets_copies, MergedHeads<D>& merged,
                                              typename D::Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool merges = item.workers == 1 || (D::kInCluster && item.begin == 0);
  const int first_sent = item.begin - item.first_end();
  const int n_chunks = item.end - item.begin;
#pragma unroll 1
  for (int c = 0; c < n_chunks; c += D::kRound) {
    const int next = c + D::kRound;
#pragma unroll
    for (int u = 0; u < D::kRound; ++u) stream.wait(c + u, 0);
    score_round<D>(stream, item, shared, c, slabs);
    if (c == 0 && meets_copies) all_writes_visible_to_copies();
    __syncthreads();
    if (stream.n_slots == 2) {
      stream.fill(c, 1);
    } else {
#pragma unroll 1
      for (int u = 0; u < D::kRound; ++u) {
        if constexpr (D::kIsSmall) {
          stream.fill_keys_alone(next + u);
        } else {
          stream.fill(next + u, 0);
        }
      }
    }
    {
      const int u = warp / D::kHeads;
      const int head = warp % D::kHeads;
      if (u < D::kRound && c + u < n_chunks && head < item.heads) {
        const int first = (item.begin + c + u) * kIntegerChunk;
        const float2 state =
            weigh_chunk<D>(stream.units_of(c + u), shared, u, head, item.position + 1 - first);
        if (lane == 0) shared.state[u][head] = state;
        if constexpr (D::kInCluster) {
          if (!merges && lane == 0) {
            shared.sent.inbox.send(0, &shared.sent.state[first_sent + c][head], state);
          }
        } else if (!merges && lane < state_size - head_dim) {
          // What is behind the sums, its padding included.
          states[static_cast<size_t>(head) * head_states +
                 static_cast<size_t>((c + u) * state_size + head_dim + lane)] = lane == 0 ? state.x
                                                                                : lane == 1
                                                                                    ? state.y
                                                                                    : 0.0f;
        }
      }
    }
    __syncthreads();
    if (D::kIsSmall && stream.n_slots != 2) stream.fill_units(next);  // in the place of these
#pragma unroll
    for (int u = 0; u < D::kRound; ++u) stream.wait(c + u, 1);
    const ValueSums<D> sums(stream, shared, slabs);
#pragma unroll
    for (int u = 0; u < D::kRound; ++u) {
      if (c + u >= n_chunks) break;
      if (merges) {
        merged.add(sums, shared, u);
      } else if constexpr (D::kInCluster) {
        if (warp >= 2 * D::kSlabs) continue;  // has no tile
        shared.sent.inbox.send(0, &shared.sent.values[first_sent + c][threadIdx.x],
                               make_float2(sums.of[u][0][0][0], sums.of[u][0][0][1]));
      } else {
        leave_sums<D>(sums, u, item.heads, head_dim,
                      states + static_cast<ptrdiff_t>((c + u) * state_size), head_states);
      }
    }
    if (next >= n_chunks) break;
    __syncthreads();
    if (stream.n_slots == 2) {
      stream.fill(next, 0);
    } else {
#pragma unroll 1
      for (int u = 0; u < D::kRound; ++u) stream.fill(next + u, 1);
    }
  }
}

// Block `worker` of the `workers` of a row and a tile of the heads of a kv head.
template <class D>
__device__ __forceinline__ void decode(const AttentionArgs& args, const ChunkStates& states,
                                       float scale, int n_slots, int worker, int workers,
                                       int kv_and_tile, int row, uint8_t* memory) {
  const KvCache& kv = args.kv;
  const int slabs = D::kExact ? D::kSlabs : kv.tile_dims() / 32;
  const DecodeItem item = item_of<D>(args, worker, workers, kv_and_tile, row);
  if (worker >= item.workers) return;
  const bool alone = item.workers == 1;

  const int bytes = n_slots * code_tile_bytes(kv.tile_dims(), D::kDigits);
  auto& shared = *reinterpret_cast<typename D::Shared*>(memory + bytes);
  const int n_sent = item.chunks - item.first_end();
  const bool receives = !alone && worker == 0 && threadIdx.x == 0;
  if constexpr (D::kInCluster) {
    if (receives) shared.sent.inbox.open();
    if (!alone) cluster_arrive();
  }
  TileBarriers barriers{shared.arrived};
  barriers.start();
  if constexpr (D::kInCluster) {
    if (receives) shared.sent.inbox.expect(D::SentChunks::bytes(n_sent, item.heads));
  }
  const typename D::Stream stream{kv,           barriers,      n_slots,      memory,
                                  shared.units, item.sequence, item.kv_head, item.begin,
                                  item.end,     item.position};
#pragma unroll 1
  for (int i = 0; i < 2 * D::kRound; ++i) {
    if (i % 2 == 0 || n_slots > 2) stream.fill(i / 2, i % 2);
  }
  // All that can be found out before the wait: the time after it counts.
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const RowToCode row_to_code(args, item, warp);
  // Every head tile of a kv head writes the same codes.
  const bool appends = args.k != nullptr && item.end == item.chunks;
  const AppendPlace<D> place(kv, item, stream, warp == RowToCode::value_number(item), slabs);
  float* const block_states = states.of(row, args.heads, item.first_head, item.begin);
  const size_t head_states =
      static_cast<size_t>(states.max_chunks) * static_cast<size_t>(states.size);
  // There the next kernel's blocks would only be in the way until here.
  const bool starts_late = D::kInCluster || item.chunks <= kLateStartChunks;
  if (!starts_late) let_next_start();
  wait_for_previous();
  if (starts_late) let_next_start();
  if constexpr (D::kInCluster) {
    if (!alone) cluster_wait();  // the inbox is open
  }
  // Copies of the threads themselves are not seen by single warps.
  if (!kBulkCopies && appends) barriers.wait_for_all();
  code_rows<D>(args, item, row_to_code, scale, appends, place, slabs, memory, shared);
  const bool meets_copies =
      appends && row_to_code.kind != RowKind::kQuery && place.meets_copies(n_slots);
  __syncthreads();

  MergedHeads<D> merged;
  attend_chunks<D>(stream, item, block_states, head_states, states.size, kv.head_dim, slabs,
                   meets_copies, merged, shared);
  if constexpr (D::kInCluster) {
    if (worker > 0) return;
    if (!alone) {
      shared.sent.inbox.wait();
      merged.add(shared.sent, n_sent);
    }
  }
  if (alone || D::kInCluster) {
    if (D::kIsSmall) __syncthreads();  // the sums go where the weights were
    merged.share(slabs, shared);
    __syncthreads();
    if (warp < item.heads) write_result<D>(args, item, shared, warp, warp);
    return;
  }
  const int mergers = min(item.heads, item.workers);
  int32_t* const done = states.done + static_cast<size_t>(row) * static_cast<size_t>(args.heads) +
                        static_cast<size_t>(kv_and_tile);
  const int part = join_mergers<D>(item, mergers, done, shared);
  if (part < 0) return;
#pragma unroll 1
  for (int head = part; head < item.heads; head += mergers) {
    merge_head<D>(args, item, states, head, shared, reinterpret_cast<float*>(memory), bytes);
    if (warp == 0) write_result<D>(args, item, shared, 0, head);
    __syncthreads();
  }
  // The last merger that needed the counter clears it.
  if (threadIdx.x == 0 && atomicAdd(done, 1) == item.workers + mergers - 1) atomicExch(done, 0);
}

// The grid: x the worker, y the kv head and the tile of its query heads, z the row.
template <class D>
__global__ void __launch_bounds__(D::kThreads, decode_blocks_per_sm(D::kSlabs, D::kWarps))
    decode_kernel(AttentionArgs args, ChunkStates states, float scale, int slots) {
  extern __shared__ uint4 shared_memory[];
  decode<D>(args, states, scale, slots, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
            static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z),
            reinterpret_cast<uint8_t*>(shared_memory));
}

// Launches if `plan` names this instance.
template <int kSlabs, int kDigits, int kColumns, int kRound, int kWarps = kDecodeWarps,
          int kSent = 0>
bool launch_if(const DecodePlan& plan, const AttentionArgs& args, const ChunkStates& states,
               cudaStream_t stream) {
  using D = Decode<kSlabs, kDigits, kColumns, kRound, kWarps, kSent>;
  if (plan.slabs != kSlabs || digit_count(args.kv.type) != kDigits || plan.columns != kColumns ||
      plan.round != kRound || plan.launch.threads != D::kThreads || plan.sent != kSent) {
    return false;
  }
  static_assert(sizeof(typename D::Shared) <=
                decode_extra_bytes(D::kDims, kColumns, kRound, kWarps, kSent));
  const float scale = head_scale(args.kv.head_dim);
  if constexpr (D::kInCluster) {
    launch_clusters(decode_kernel<D>, plan.launch.blocks[0], plan.launch, stream, args, states,
                    scale, plan.slots);
  } else {
    launch(decode_kernel<D>, plan.launch, stream, args, states, scale, plan.slots);
  }
  return true;
}
template <int kSlabs>
bool launch_if_slabs(const DecodePlan& plan, const AttentionArgs& args, const ChunkStates& states,
                     cudaStream_t stream) {
  if constexpr (kSlabs <= kFewDecodeSlabs) {
    if (launch_if<kSlabs, 1, 1, 1, kFewDecodeWarps>(plan, args, states, stream) ||
        launch_if<kSlabs, 2, 1, 1, kFewDecodeWarps>(plan, args, states, stream)) {
      return true;
    }
  }
  if constexpr (kSlabs <= kClusterSlabs) {
    constexpr int kFew = sent_chunks(kShortChunks);
    constexpr int kMany = sent_chunks(kClusterChunks);
    constexpr int kMost = sent_chunks(kLongClusterChunks);
    if (launch_if<kSlabs, 1, 1, 1, kDecodeWarps, kFew>(plan, args, states, stream) ||
        launch_if<kSlabs, 2, 1, 1, kDecodeWarps, kFew>(plan, args, states, stream) ||
        launch_if<kSlabs, 1, 1, 1, kDecodeWarps, kMany>(plan, args, states, stream) ||
        launch_if<kSlabs, 2, 1, 1, kDecodeWarps, kMany>(plan, args, states, stream) ||
        launch_if<kSlabs, 1, 1, 1, kDecodeWarps, kMost>(plan, args, states, stream) ||
        launch_if<kSlabs, 2, 1, 1, kDecodeWarps, kMost>(plan, args, states, stream)) {
      return true;
    }
  }
  return launch_if<kSlabs, 1, 1, 1>(plan, args, states, stream) ||
         launch_if<kSlabs, 1, 1, 2>(plan, args, states, stream) ||
         launch_if<kSlabs, 1, 2, 1>(plan, args, states, stream) ||
         launch_if<kSlabs, 2, 1, 1>(plan, args, states, stream) ||
         launch_if<kSlabs, 2, 1, 2>(plan, args, states, stream) ||
         launch_if<kSlabs, 2, 2, 1>(plan, args, states, stream);
}

}  // namespace

bool has_large_clusters() {
  constexpr int kSent = sent_chunks(kLongClusterChunks);
  using D = Decode<kClusterSlabs, 2, 1, 1, kDecodeWarps, kSent>;
  constexpr int kBytes = 4 * code_tile_bytes(D::kDims, D::kDigits) +
                         decode_extra_bytes(D::kDims, D::kColumns, D::kRound, D::kWarps, kSent);
  static const bool has = room_for_cluster(decode_kernel<D>, kLargeClusterBlocks, D::kThreads,
                                           static_cast<size_t>(kBytes));
  return has;
}

void launch_attention(const DecodePlan& plan, const AttentionArgs& args, const Workspace& workspace,
                      cudaStream_t stream) {
  const ChunkStates states{workspace.attention, workspace.attention_done, workspace.max_chunks,
                           attention_state(args.kv.head_dim)};
  require_instance(launch_if_slabs<1>(plan, args, states, stream) ||
                   launch_if_slabs<2>(plan, args, states, stream) ||
                   launch_if_slabs<3>(plan, args, states, stream) ||
                   launch_if_slabs<4>(plan, args, states, stream) ||
                   launch_if_slabs<8>(plan, args, states, stream));
}

}  // namespace edgellm::cuda
