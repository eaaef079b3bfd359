// Attention over codes of rows that are each alone in their sequence (decode): FlashDecoding in
// integers (docs/numerics.md, "Attention in integers").
//
// A block takes a run of chunks of one row for the query heads of a kv head, or for a tile of them.
// The keys and values of a chunk are the rows of products on the tensor cores; the columns are the
// digits of the queries, later those of the weights. A block that takes all chunks of a row merges
// them as it goes. Otherwise each leaves the states of its chunks in the workspace, and the last
// blocks of the row to end merge them, a head at a time.
//
// The rows of this pass are coded here: queries by every block, a key and a value by the block that
// takes the last chunk of a row. It also writes them to the cache. Chunks of earlier steps are
// fetched before the previous kernel has ended. A warm-up as in gemv.cu made it slower
// (docs/ladder.md).
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/code_row.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/tile_stream.cuh"
#include "kernels/integer_attention.h"

namespace edgellm::cuda {
namespace {

constexpr int kDecodeThreads = 256;
constexpr int kDecodeWarps = kDecodeThreads / 32;
static_assert(kDecodeThreads == kDecodeBlockThreads);
constexpr int kTiles = kIntegerChunk / kAttentionChunk;  // of a chunk
constexpr int kWeightPitch = kIntegerChunk + 16;         // bytes: rows in other banks

__device__ __forceinline__ int32_t load_acquire(const int32_t* from) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// The states of chunks that blocks leave to each other.
struct ChunkStates {
  float* states;  // [row, head, max_chunks, size]: sums [head_dim], maximum, sum of weights
  int32_t* done;  // [row, kv head, head tile] blocks that have ended
  int max_chunks;
  int size;

  __device__ __forceinline__ float* of(int row, int heads, int head, int chunk) const {
    return states +
           ((static_cast<size_t>(row) * static_cast<size_t>(heads) + static_cast<size_t>(head)) *
                static_cast<size_t>(max_chunks) +
            static_cast<size_t>(chunk)) *
               static_cast<size_t>(size);
  }
};

// kColumns: columns of a product in eights, each two digits of four heads. kRound: chunks that a
// block works on at once.
template <int kSlabs_, int kDigits_, int kColumns_, int kRound_>
struct Decode {
  static constexpr int kSlabs = kSlabs_;
  static constexpr int kDigits = kDigits_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kRound = kRound_;
  using Stream = ChunkStream<kDigits, 2 * kRound>;
  static constexpr int kDims = 32 * kSlabs;
  // Heads of up to 128 dimensions have an instance for each number of slabs.
  static constexpr bool kExact = kSlabs <= 4;
  static constexpr int kHeads = 4 * kColumns;
  static constexpr int kQueryPitch = kDims + 16;          // bytes: rows in other banks
  static constexpr int kScoreFloats = kIntegerChunk + 4;  // of a chunk
  static constexpr int kRowFloats = kDims > kRound* kScoreFloats ? kDims : kRound* kScoreFloats;
  // Tiles of 16 dimensions that a warp has.
  static constexpr int kDimTiles = (2 * kSlabs + kDecodeWarps - 1) / kDecodeWarps;

  // Behind the slots of the stream.
  struct Shared {
    alignas(16) typename Stream::Units units[2 * kRound];
    alignas(16) uint8_t q[2 * kHeads][kQueryPitch];  // column 2 h + digit
    alignas(16) uint8_t p[kRound][2 * kHeads][kWeightPitch];
    float rows[kHeads][kRowFloats];  // scores of a round; in the end the merged sums
    float factor[kHeads];            // of the scores
    float2 state[kRound][kHeads];    // of chunks: maximum, sum of the weights
    float sum[kHeads];               // of all weights
    int ticket;
    alignas(8) uint64_t arrived[TileSlots::kMost];
  };
};

// Contexts of up to so many chunks are short (docs/ladder.md).
constexpr int kShortChunks = 4;

// What a block does: chunks begin .. end - 1 of the row's.
struct DecodeItem {
  int row, kv_head, first_head, heads;
  int sequence, position, chunks;
  int workers, begin, end;
};

// The scores of chunk c, number u of its round, into shared.rows: warp w has 16 positions.
template <class D>
__device__ __forceinline__ void score_chunk(const typename D::Stream& stream,
                                            const DecodeItem& item, typename D::Shared& shared,
                                            int c, int u, int slabs) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int tile = warp / 4;
  const int first_row = warp % 4 * 16;
  int high[D::kColumns][4] = {};  // upper digits of the keys with both digits of the queries
  int low[D::kColumns][4] = {};
  {
    // A tile that does not exist is whatever lies there: none of its positions is reached.
    const uint8_t* keys = stream.tile(c, tile);
    const int at =
        (first_row + lane % 16) * slab_row_bytes(D::kDigits) + lane / 16 * 16;  // of ldmatrix
#pragma unroll
    for (int s = 0; s < D::kSlabs; ++s) {
      if (!D::kExact && s >= slabs) break;
      const uint8_t* slab = keys + s * key_slab_bytes(D::kDigits);
      uint32_t a[4];
      uint32_t b[D::kColumns][2];
#pragma unroll
      for (int n = 0; n < D::kColumns; ++n) {
        const uint8_t* q = shared.q[8 * n + g] + 32 * s + 4 * t;
        b[n][0] = *reinterpret_cast<const uint32_t*>(q);
        b[n][1] = *reinterpret_cast<const uint32_t*>(q + 16);
      }
      load_matrices(a, slab + swizzled(at, D::kDigits));
#pragma unroll
      for (int n = 0; n < D::kColumns; ++n) {
        multiply_tile<int8_t, int8_t>(high[n], a, b[n][0], b[n][1]);
      }
      if constexpr (D::kDigits == 2) {
        load_matrices(a, slab + swizzled(at + kSlabDims, D::kDigits));
#pragma unroll
        for (int n = 0; n < D::kColumns; ++n) {
          multiply_tile<int8_t, int8_t>(low[n], a, b[n][0], b[n][1]);
        }
      }
    }
  }
  // Columns 2 t and 2 t + 1: the digits of head t.
  const float(&units)[3][kAttentionChunk] = stream.units_of(c)[tile];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int in_tile = key_position(first_row + g + 8 * i);
    const int in_chunk = tile * kAttentionChunk + in_tile;
    const bool reached = (item.begin + c) * kIntegerChunk + in_chunk <= item.position;
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) {
      const int head = 4 * n + t;
      const int sum = 256 * high[n][2 * i] + high[n][2 * i + 1] + low[n][2 * i];
      const CachedUnits of{units[0][in_tile], units[1][in_tile], 0.0f};
      shared.rows[head][u * D::kScoreFloats + in_chunk] =
          reached ? integer_score(sum, of, shared.factor[head]) : -INFINITY;
    }
  }
}

// The weights of chunk c, number u of its round, for one head, by a warp: codes into shared.p;
// returns their maximum and sum. `count`: positions up to the row's own.
template <class D>
__device__ __forceinline__ float2 weigh_chunk(const typename D::Stream& stream,
                                              typename D::Shared& shared, int c, int u, int head,
                                              int count) {
  constexpr int kEach = kIntegerChunk / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float score[kEach];
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    score[i] = shared.rows[head][u * D::kScoreFloats + lane + 32 * i];
    max = fmaxf(max, score[i]);
  }
  max = ceilf(max_warp(max));
  // Partial sum j mod 16 takes positions in rising order, which lie with lanes j and j + 16 in
  // turn.
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int j = lane + 32 * i;
    const float weight = integer_weight(score[i], max);
    const uint32_t code = weight_code(weight);
    shared.p[u][2 * head][j] = static_cast<uint8_t>(code >> 8);
    shared.p[u][2 * head + 1][j] = static_cast<uint8_t>(code);
    const float per_unit =
        j < count ? stream.units_of(c)[j / kAttentionChunk][2][j % kAttentionChunk] : 0.0f;
    const float other = __shfl_xor_sync(kAllLanes, weight, 16);
    const float other_unit = __shfl_xor_sync(kAllLanes, per_unit, 16);
    const bool is_first = lane < 16;
    sum = fmaf(is_first ? weight : other, is_first ? per_unit : other_unit, sum);
    sum = fmaf(is_first ? other : weight, is_first ? other_unit : per_unit, sum);
  }
  for (int width = kWeightPartials / 2; width >= 1; width /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, width);
  }
  return make_float2(max, sum);
}

// Calls add(tile, n, sums of rows g and g + 8) with the exact sums of a chunk.
template <class D, class Add>
__device__ __forceinline__ void weigh_values(const typename D::Stream& stream,
                                             const typename D::Shared& shared, int c, int u,
                                             int slabs, const Add& add) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int dims = 32 * slabs;
#pragma unroll
  for (int i = 0; i < D::kDimTiles; ++i) {
    const int tile_of_dims = warp + kDecodeWarps * i;
    if (tile_of_dims >= 2 * slabs) break;  // of the warp
    int high[D::kColumns][4] = {};
    int low[D::kColumns][4] = {};
    const int at = (16 * tile_of_dims + lane % 16) * slab_row_bytes(D::kDigits) + lane / 16 * 16;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const uint8_t* slab = stream.tile(c, 2 + tile) + s * dims * slab_row_bytes(D::kDigits);
        uint32_t a[4];
        uint32_t b[D::kColumns][2];
#pragma unroll
        for (int n = 0; n < D::kColumns; ++n) {
          const uint8_t* p = shared.p[u][8 * n + g] + tile * kAttentionChunk + 32 * s + 4 * t;
          b[n][0] = *reinterpret_cast<const uint32_t*>(p);
          b[n][1] = *reinterpret_cast<const uint32_t*>(p + 16);
        }
        load_matrices(a, slab + swizzled(at, D::kDigits));
#pragma unroll
        for (int n = 0; n < D::kColumns; ++n) {
          multiply_tile<int8_t, uint8_t>(high[n], a, b[n][0], b[n][1]);
        }
        if constexpr (D::kDigits == 2) {
          load_matrices(a, slab + swizzled(at + kSlabDims, D::kDigits));
#pragma unroll
          for (int n = 0; n < D::kColumns; ++n) {
            multiply_tile<int8_t, uint8_t>(low[n], a, b[n][0], b[n][1]);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) {
      const auto sum = [&](int row) {
        return static_cast<float>(256 * high[n][2 * row] + high[n][2 * row + 1] + low[n][2 * row]);
      };
      add(i, n, sum(0), sum(1));
    }
  }
}

// Writes a row's codes into its tile of the cache and, unless `staged` is null, of shared memory.
template <class D>
__device__ __forceinline__ void write_codes(const CodedRow<D::kSlabs>& coded, bool is_value,
                                            int position, int slabs, uint8_t* cached,
                                            uint8_t* staged) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < D::kSlabs; ++j) {
    if (!D::kExact && j >= slabs) break;
#pragma unroll
    for (int digit = 0; digit < D::kDigits; ++digit) {
      const int d = lane + 32 * j;
      const int at = is_value ? value_byte(position, d, digit, D::kDigits, 32 * slabs)
                              : key_byte(position, d, digit, D::kDigits);
      const uint8_t byte = digit_byte<D::kDigits>(coded.code[j], digit);
      cached[at] = byte;
      if (staged != nullptr) staged[at] = byte;
    }
  }
}

// Where the row's key and value go: into their tiles of the cache, and of shared memory where those
// were fetched before.
struct AppendPlace {
  uint8_t* keys;
  uint8_t* values;
  float* units;  // of the position
  uint8_t* staged_keys;
  uint8_t* staged_values;
  float* staged_units;
};

// Codes the queries of the item's heads, and the row's key and value where the item appends them.
template <class D>
__device__ __forceinline__ void code_rows(const AttentionArgs& args, const DecodeItem& item,
                                          float scale, bool appends, const AppendPlace& place,
                                          uint64_t* arrived, typename D::Shared& shared) {
  const KvCache& kv = args.kv;
  const int slabs = D::kExact ? D::kSlabs : kv.tile_dims() / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto row_of = [&](const float* rows, int heads, int head) {
    return rows + (static_cast<size_t>(item.row) * static_cast<size_t>(heads) +
                   static_cast<size_t>(head)) *
                      static_cast<size_t>(kv.head_dim);
  };
  // The key and the value are first: their warps have fewer queries.
  for (int i = warp; i < D::kHeads + 2; i += kDecodeWarps) {
    WarpRow<D::kSlabs> row;
    if (i < 2) {
      if (!appends) continue;
      const bool is_value = i == 1;
      row.load(row_of(is_value ? args.v : args.k, kv.kv_heads, item.kv_head), kv.head_dim);
      const CodedRow<D::kSlabs> coded(row, is_value, kv.head_dim, kv.type);
      uint8_t* const staged = is_value ? place.staged_values : place.staged_keys;
      // The fetched tile must not overwrite the new row.
      if (staged != nullptr) first_phase_ended(arrived + 2 * i);
      write_codes<D>(coded, is_value, item.position, slabs, is_value ? place.values : place.keys,
                     staged);
      const int n_units = is_value ? 2 : 1;
      if (lane < n_units) {
        const float unit = lane == 0 ? coded.units[0] : coded.units[1];
        place.units[(i + lane) * kAttentionChunk] = unit;
        if (place.staged_units != nullptr) {
          first_phase_ended(arrived);  // units come with the keys
          place.staged_units[(i + lane) * kAttentionChunk] = unit;
        }
      }
      if (lane == 0 && !coded.finite) set_fault(args.fault, args.layer + 1);
      // A tile that is fetched later must have the new row, or take the place of this one.
      all_writes_visible_to_copies();
      continue;
    }
    const int head = i - 2;
    row.load(row_of(args.q, args.heads, item.first_head + head),
             head < item.heads ? kv.head_dim : 0);
    const CodedQuery<D::kSlabs> coded(row, kv.head_dim, scale, kv.type);
#pragma unroll
    for (int j = 0; j < D::kSlabs; ++j) {
      shared.q[2 * head][lane + 32 * j] = static_cast<uint8_t>(coded.high[j]);
      shared.q[2 * head + 1][lane + 32 * j] = static_cast<uint8_t>(coded.low[j]);
    }
    if (lane == 0) shared.factor[head] = coded.factor;
  }
}

// Turns the sums of head `head` in shared.rows back and writes the result, by a warp.
template <class D>
__device__ __forceinline__ void write_result(const AttentionArgs& args, const DecodeItem& item,
                                             const typename D::Shared& shared, int head) {
  const int head_dim = args.kv.head_dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  WarpRow<D::kSlabs> row;
  row.load(shared.rows[head], head_dim);
  row.turn(head_dim);
  const float factor = output_factor(shared.sum[head], head_dim, args.kv.type);
  float* out = args.out + (static_cast<size_t>(item.row) * static_cast<size_t>(args.heads) +
                           static_cast<size_t>(item.first_head + head)) *
                              static_cast<size_t>(head_dim);
#pragma unroll
  for (int j = 0; j < D::kSlabs; ++j) {
    if (lane + 32 * j < head_dim) out[lane + 32 * j] = row.x[j] * factor;
  }
}

// Merges the chunks of head `head` from the workspace into shared.rows[0] and shared.sum, with the
// whole block; `memory` of `bytes` bytes.
template <class D>
__device__ void merge_head(const AttentionArgs& args, const DecodeItem& item,
                           const ChunkStates& states, int head, typename D::Shared& shared,
                           float* memory, int bytes) {
  const int head_dim = args.kv.head_dim;
  const int t = static_cast<int>(threadIdx.x);
  const int lane = t % 32;
  // States of as many chunks as there is room for, and their factors.
  const int batch = min(item.chunks, bytes / 4 / (states.size + 4));
  float4* const factors = reinterpret_cast<float4*>(memory + batch * states.size);
  const float* from = states.of(item.row, args.heads, item.first_head + head, 0);
  float running = -INFINITY;
  float sum = 0.0f;
  float o = 0.0f;
#pragma unroll 1
  for (int first = 0; first < item.chunks; first += batch) {
    const int count = min(batch, item.chunks - first);
    const int words = states.size / 4;
    __syncthreads();
    for (int w = t; w < count * words; w += kDecodeThreads) {
      copy_async(memory + 4 * w, from + 4 * (first * words + w));
    }
    wait_for_copies();
    __syncthreads();
    if (t < 32) {
#pragma unroll 1
      for (int c = lane; c - lane < count; c += 32) {
        const float* state = memory + min(c, count - 1) * states.size + head_dim;
        const float max = c < count ? state[0] : -INFINITY;
        // Prefix maxima, so that the factors of all chunks are found at once.
        float prefix = fmaxf(max, running);
        for (int width = 1; width < 32; width *= 2) {
          const float other = __shfl_up_sync(kAllLanes, prefix, width);
          if (lane >= width) prefix = fmaxf(prefix, other);
        }
        float before = __shfl_up_sync(kAllLanes, prefix, 1);
        if (lane == 0) before = running;
        if (c < count) {
          factors[c] = {power_of_two(before - prefix), power_of_two(max - prefix), state[1], 0.0f};
        }
        running = __shfl_sync(kAllLanes, prefix, 31);
      }
    }
    __syncthreads();
    if (t < head_dim) {
#pragma unroll 4
      for (int c = 0; c < count; ++c) {
        const float4 f = factors[c];
        sum = fmaf(f.z, f.y, sum * f.x);
        o = fmaf(memory[c * states.size + t], f.y, o * f.x);
      }
    }
  }
  if (t < head_dim) shared.rows[0][t] = o;
  if (t == 0) shared.sum[0] = sum;
  __syncthreads();
}

// The last blocks of a row to end merge its heads: as many blocks as there are heads, if there are.
// The others have all begun by then, since blocks begin in the order of their numbers and those
// that wait are few: so waiting is safe.
template <class D>
__device__ __forceinline__ void merge_row(const AttentionArgs& args, const DecodeItem& item,
                                          const ChunkStates& states, int32_t* done,
                                          typename D::Shared& shared, float* memory, int bytes) {
  const int mergers = min(item.heads, item.workers);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    shared.ticket = atomicAdd(done, 1);
  }
  __syncthreads();
  const int part = shared.ticket - (item.workers - mergers);
  if (part < 0) return;
  if (threadIdx.x == 0) {
    while (load_acquire(done) < item.workers) {
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int head = part; head < item.heads; head += mergers) {
    merge_head<D>(args, item, states, head, shared, memory, bytes);
    if (threadIdx.x < 32) {
      DecodeItem of = item;
      of.first_head += head;
      write_result<D>(args, of, shared, 0);
    }
    __syncthreads();
  }
  // The last merger that needed the counter clears it.
  if (threadIdx.x == 0 && atomicAdd(done, 1) == item.workers + mergers - 1) atomicExch(done, 0);
}

// The result of heads whose chunks a block has taken alone: merged sums, and the sums of the
// weights.
template <class D>
struct MergedHeads {
  float max[D::kColumns];
  float sum[D::kColumns];
  float o[D::kDimTiles][D::kColumns][2];

  __device__ __forceinline__ MergedHeads() : sum{}, o{} {
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) max[n] = -INFINITY;
  }
};

// Block `worker` of the `workers` of a row and a tile of the heads of a kv head.
template <class D>
__device__ __forceinline__ void decode(const AttentionArgs& args, const ChunkStates& states,
                                       float scale, int n_slots, int worker, int workers,
                                       int kv_and_tile, int row, uint8_t* memory) {
  const KvCache& kv = args.kv;
  const int slabs = D::kExact ? D::kSlabs : kv.tile_dims() / 32;
  const int group = args.heads / kv.kv_heads;
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
  if (worker >= item.workers) return;
  item.begin = item.chunks * worker / item.workers;
  item.end = item.chunks * (worker + 1) / item.workers;

  const int bytes = n_slots * code_tile_bytes(kv.tile_dims(), D::kDigits);
  auto& shared = *reinterpret_cast<typename D::Shared*>(memory + bytes);
  TileSlots slots{shared.arrived};
  slots.start();
  const typename D::Stream stream{kv,           slots,         n_slots,      memory,
                                  shared.units, item.sequence, item.kv_head, item.begin,
                                  item.end,     item.position};
  for (int u = 0; u < D::kRound; ++u) {
    stream.fill_keys(u);
    if (n_slots > 2) stream.fill_values(u);
  }
  // Every head tile of a kv head writes the same codes.
  const bool appends = args.k != nullptr && item.end == item.chunks;
  const int last = item.end - 1 - item.begin;
  const int tile = item.position % kIntegerChunk / kAttentionChunk;
  AppendPlace place{};
  if (appends) {
    const size_t number = kv.tile_number(item.sequence, item.position, item.kv_head);
    const size_t at = number * static_cast<size_t>(stream.tile_bytes());
    place.keys = static_cast<uint8_t*>(kv.k) + at;
    place.values = static_cast<uint8_t*>(kv.v) + at;
    place.units = kv.units_of(number) + item.position % kAttentionChunk;
    if (last < D::kRound) {
      place.staged_keys = stream.tile(last, tile);
      if (n_slots > 2) place.staged_values = stream.tile(last, 2 + tile);
      place.staged_units = &stream.units[last][tile][0][item.position % kAttentionChunk];
    }
  }
  // Where contexts are short the next kernel's blocks would only be in the way until here.
  const bool is_short = item.chunks <= kShortChunks;
  if (!is_short) let_next_start();
  wait_for_previous();
  if (is_short) let_next_start();
  // Copies of the threads themselves are not seen by single warps.
  if (!kBulkCopies && appends) slots.wait_for_all();
  code_rows<D>(args, item, scale, appends, place, shared.arrived + stream.slot(last, tile), shared);
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  MergedHeads<D> merged;
#pragma unroll 1
  for (int c = 0; c < item.end - item.begin; c += D::kRound) {
    const int n_chunks = min(D::kRound, item.end - item.begin - c);
    for (int u = 0; u < n_chunks; ++u) stream.wait(c + u, 0);
    for (int u = 0; u < n_chunks; ++u) score_chunk<D>(stream, item, shared, c + u, u, slabs);
    __syncthreads();
    for (int u = 0; u < n_chunks; ++u) {
      if (n_slots > 2) {
        stream.fill_keys(c + D::kRound + u);
      } else {
        stream.fill_values(c);
      }
    }
    for (int i = warp; i < n_chunks * D::kHeads; i += kDecodeWarps) {
      const int u = i / D::kHeads;
      const int head = i % D::kHeads;
      if (head >= item.heads) continue;
      const int chunk = item.begin + c + u;
      const float2 state =
          weigh_chunk<D>(stream, shared, c + u, u, head, item.position + 1 - chunk * kIntegerChunk);
      if (lane != 0) continue;
      if (item.workers == 1) {
        shared.state[u][head] = state;
      } else {
        float* to = states.of(row, args.heads, item.first_head + head, chunk) + kv.head_dim;
        to[0] = state.x;
        to[1] = state.y;
      }
    }
    __syncthreads();
    for (int u = 0; u < n_chunks; ++u) stream.wait(c + u, 2);
    for (int u = 0; u < n_chunks; ++u) {
      float before[D::kColumns];
      float chunk[D::kColumns];
#pragma unroll
      for (int n = 0; n < D::kColumns; ++n) {
        const float2 state = shared.state[u][4 * n + t];
        const float larger = fmaxf(merged.max[n], state.x);
        before[n] = power_of_two(merged.max[n] - larger);
        chunk[n] = power_of_two(state.x - larger);
        merged.max[n] = larger;
        merged.sum[n] = fmaf(state.y, chunk[n], merged.sum[n] * before[n]);
      }
      weigh_values<D>(
          stream, shared, c + u, u, slabs, [&](int i, int n, float low_row, float high_row) {
            const int head = 4 * n + t;
            if (item.workers == 1) {
              merged.o[i][n][0] = fmaf(low_row, chunk[n], merged.o[i][n][0] * before[n]);
              merged.o[i][n][1] = fmaf(high_row, chunk[n], merged.o[i][n][1] * before[n]);
            } else if (head < item.heads) {
              float* to = states.of(row, args.heads, item.first_head + head, item.begin + c + u);
              const int d = 16 * (warp + kDecodeWarps * i) + g;
              if (d < kv.head_dim) to[d] = low_row;
              if (d + 8 < kv.head_dim) to[d + 8] = high_row;
            }
          });
    }
    __syncthreads();
    for (int u = 0; u < n_chunks; ++u) {
      if (n_slots > 2) {
        stream.fill_values(c + D::kRound + u);
      } else {
        stream.fill_keys(c + 1);
      }
    }
  }

  if (item.workers > 1) {
    int32_t* done = states.done + static_cast<size_t>(row) * static_cast<size_t>(args.heads) +
                    static_cast<size_t>(kv_and_tile);
    merge_row<D>(args, item, states, done, shared, reinterpret_cast<float*>(memory), bytes);
    return;
  }
#pragma unroll
  for (int i = 0; i < D::kDimTiles; ++i) {
    const int d = 16 * (warp + kDecodeWarps * i) + g;
    if (d >= 32 * slabs) break;
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) {
      shared.rows[4 * n + t][d] = merged.o[i][n][0];
      shared.rows[4 * n + t][d + 8] = merged.o[i][n][1];
    }
  }
  if (warp == 0 && g == 0) {
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) shared.sum[4 * n + t] = merged.sum[n];
  }
  __syncthreads();
  if (warp < item.heads) write_result<D>(args, item, shared, warp);
}

// The grid: x the worker, y the kv head and the tile of its query heads, z the row.
template <class D>
__global__ void __launch_bounds__(kDecodeThreads, D::kDims <= 128 ? 3 : 1)
    decode_kernel(AttentionArgs args, ChunkStates states, float scale, int slots) {
  extern __shared__ uint4 shared_memory[];
  decode<D>(args, states, scale, slots, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
            static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z),
            reinterpret_cast<uint8_t*>(shared_memory));
}

// Launches if `plan` names this instance.
template <int kSlabs, int kDigits, int kColumns, int kRound>
bool launch_if(const DecodePlan& plan, const AttentionArgs& args, const ChunkStates& states,
               cudaStream_t stream) {
  using D = Decode<kSlabs, kDigits, kColumns, kRound>;
  if (plan.slabs != kSlabs || digit_count(args.kv.type) != kDigits || plan.columns != kColumns ||
      plan.round != kRound) {
    return false;
  }
  static_assert(sizeof(typename D::Shared) <= decode_extra_bytes(D::kDims, kColumns, kRound));
  launch(decode_kernel<D>, plan.launch, stream, args, states, head_scale(args.kv.head_dim),
         plan.slots);
  return true;
}
template <int kSlabs>
bool launch_if_slabs(const DecodePlan& plan, const AttentionArgs& args, const ChunkStates& states,
                     cudaStream_t stream) {
  return launch_if<kSlabs, 1, 1, 1>(plan, args, states, stream) ||
         launch_if<kSlabs, 1, 1, 2>(plan, args, states, stream) ||
         launch_if<kSlabs, 1, 2, 1>(plan, args, states, stream) ||
         launch_if<kSlabs, 2, 1, 1>(plan, args, states, stream) ||
         launch_if<kSlabs, 2, 1, 2>(plan, args, states, stream) ||
         launch_if<kSlabs, 2, 2, 1>(plan, args, states, stream);
}

}  // namespace

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
