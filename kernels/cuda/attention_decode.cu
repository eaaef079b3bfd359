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
// block works on at once. kWarps: of a block, kDecodeWarps or kFewDecodeWarps.
template <int kSlabs_, int kDigits_, int kColumns_, int kRound_, int kWarps_>
struct Decode {
  static constexpr int kSlabs = kSlabs_;
  static constexpr int kDigits = kDigits_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kRound = kRound_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = 32 * kWarps;
  // Small blocks are many on an SM, so each has to do with little shared memory.
  static constexpr bool kIsSmall = kWarps == kFewDecodeWarps;
  static_assert(!kIsSmall || (kRound_ == 1 && kColumns_ == 1));
  static constexpr int kDims = 32 * kSlabs;
  // Heads of up to 128 dimensions have an instance for each number of slabs.
  static constexpr bool kExact = kSlabs <= 4;
  static constexpr int kUnits = kIsSmall ? kRound : 2 * kRound;  // of chunks, at once
  using Stream = ChunkStream<kDigits, kUnits, kExact ? kDims : 0>;
  static constexpr int kHeads = 4 * kColumns;
  static_assert(kRound * kHeads <= kWarps, "a warp weighs the chunk of one head");
  // Tiles of 16 positions of a chunk that a warp scores.
  static constexpr int kScoreTiles = kIntegerChunk / 16 / kWarps;
  static constexpr int kQueryPitch = kDims + 16;          // bytes: rows in other banks
  static constexpr int kScoreFloats = kIntegerChunk + 4;  // of a chunk
  static constexpr int kRowFloats =
      kDims + 4 > kRound* kScoreFloats ? kDims + 4 : kRound* kScoreFloats;
  // Tiles of 16 dimensions that a warp has.
  static constexpr int kDimTiles = (2 * kSlabs + kWarps - 1) / kWarps;

  // Behind the slots of the stream.
  struct Shared {
    alignas(16) typename Stream::Units units[kUnits];
    alignas(16) uint8_t q[2 * kHeads][kQueryPitch];  // column 2 h + digit
    // Of the weights of a chunk, column 2 h + digit; in a small block they lie over the scores.
    alignas(16) uint8_t p[kIsSmall ? 1 : kRound][kIsSmall ? 1 : 2 * kHeads][kWeightPitch];
    // Scores of a round, in a small block then the digits of their weights; in the end the merged
    // sums.
    alignas(16) float rows[kHeads][kRowFloats];
    float factor[kHeads];          // of the scores
    float2 state[kRound][kHeads];  // of chunks: maximum, sum of the weights
    float sum[kHeads];             // of all weights
    int ticket;
    alignas(8) uint64_t arrived[TileBarriers::kMost];

    __device__ __forceinline__ uint8_t* weights(int u, int column) {
      if constexpr (kIsSmall) {
        return reinterpret_cast<uint8_t*>(rows[column / 2]) + column % 2 * kSecondDigits;
      } else {
        return p[u][column];
      }
    }
    __device__ __forceinline__ const uint8_t* weights(int u, int column) const {
      return const_cast<Shared*>(this)->weights(u, column);
    }
  };
  // Bytes from a weight's upper digit to its lower one: all columns start in different banks.
  static constexpr int kSecondDigits = 320;
  static_assert(kSecondDigits + kIntegerChunk <= 4 * kScoreFloats);
};

// The next kernel starts late in contexts of at most kLateStartChunks chunks (docs/ladder.md).
constexpr int kLateStartChunks = 4;

// What a block does: chunks begin .. end - 1 of the row's.
struct DecodeItem {
  int row, kv_head, first_head, heads;
  int sequence, position, chunks;
  int workers, begin, end;
};

// The scores of the chunks from c on, those of a round, into shared.rows: warp w has the tiles w,
// w + kWarps, ... of 16 positions of each. A chunk or tile that does not exist is whatever lies
// there: none of its positions is reached.
template <class D>
__device__ __forceinline__ void score_round(const typename D::Stream& stream,
                                            const DecodeItem& item, typename D::Shared& shared,
                                            int c, int slabs) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  // Of a chunk of the round and one of its tiles of positions.
  constexpr int kParts = D::kRound * D::kScoreTiles;
  const auto chunk_of = [](int part) { return part / D::kScoreTiles; };
  const auto tile_of = [&](int part) {
    return (warp + D::kWarps * (part % D::kScoreTiles)) / (kAttentionChunk / 16);
  };
  const int first_row = warp % (kAttentionChunk / 16) * 16;
  // Upper and lower digits of the keys, each with both digits of the queries.
  int sums[kParts][D::kDigits][D::kColumns][4] = {};
  const int row = (first_row + lane % 16) * slab_row_bytes(D::kDigits) + lane / 16 * 16;
#pragma unroll
  for (int s = 0; s < D::kSlabs; ++s) {
    if (!D::kExact && s >= slabs) break;
    uint32_t a[kParts][D::kDigits][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int digit = 0; digit < D::kDigits; ++digit) {
        load_matrices(a[part][digit], stream.tile(chunk_of(part), tile_of(part)) +
                                          s * key_slab_bytes(D::kDigits) +
                                          swizzled(row + digit * kSlabDims, D::kDigits));
      }
    }
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) {
      const uint8_t* q = shared.q[8 * n + g] + 32 * s + 4 * t;
      const uint32_t b0 = *reinterpret_cast<const uint32_t*>(q);
      const uint32_t b1 = *reinterpret_cast<const uint32_t*>(q + 16);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int digit = 0; digit < D::kDigits; ++digit) {
          multiply_tile<int8_t, int8_t>(sums[part][digit][n], a[part][digit], b0, b1);
        }
      }
    }
  }
  // Columns 2 t and 2 t + 1: the digits of head t.
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int u = chunk_of(part);
    const int tile = tile_of(part);
    const float(&units)[3][kAttentionChunk] = stream.units_of(c + u)[tile];
    const int first = (item.begin + c + u) * kIntegerChunk + tile * kAttentionChunk;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int in_tile = key_position(first_row + g + 8 * i);
      const CachedUnits of{units[0][in_tile], units[1][in_tile], 0.0f};
#pragma unroll
      for (int n = 0; n < D::kColumns; ++n) {
        const int head = 4 * n + t;
        int sum = 256 * sums[part][0][n][2 * i] + sums[part][0][n][2 * i + 1];
        if (D::kDigits == 2) sum += sums[part][D::kDigits - 1][n][2 * i];
        shared.rows[head][u * D::kScoreFloats + tile * kAttentionChunk + in_tile] =
            first + in_tile <= item.position ? integer_score(sum, of, shared.factor[head])
                                             : -INFINITY;
      }
    }
  }
}

// The weights of chunk u of a round for one head, by a warp: codes into shared.weights(); returns
// their maximum and sum. `count`: positions up to the row's own.
template <class D>
__device__ __forceinline__ float2 weigh_chunk(const typename D::Stream::Units& units,
                                              typename D::Shared& shared, int u, int head,
                                              int count) {
  constexpr int kEach = kIntegerChunk / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float score[kEach];
  float per_unit[kEach];
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int j = lane + 32 * i;
    score[i] = shared.rows[head][u * D::kScoreFloats + j];
    max = fmaxf(max, score[i]);
    per_unit[i] = j < count ? units[i * 32 / kAttentionChunk][2][j % kAttentionChunk] : 0.0f;
  }
  max = ceilf(max_warp(max));
  if (D::kIsSmall) __syncwarp();  // the codes go where the scores were
  // Partial sum j mod 16 takes positions in rising order, which lie with lanes j and j + 16 in
  // turn.
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int j = lane + 32 * i;
    const float weight = integer_weight(score[i], max);
    const uint32_t code = weight_code(weight);
    shared.weights(u, 2 * head)[j] = static_cast<uint8_t>(code >> 8);
    shared.weights(u, 2 * head + 1)[j] = static_cast<uint8_t>(code);
    const float other = __shfl_xor_sync(kAllLanes, weight, 16);
    const float other_unit = __shfl_xor_sync(kAllLanes, per_unit[i], 16);
    const bool is_first = lane < 16;
    sum = fmaf(is_first ? weight : other, is_first ? per_unit[i] : other_unit, sum);
    sum = fmaf(is_first ? other : weight, is_first ? other_unit : per_unit[i], sum);
  }
#pragma unroll
  for (int width = kWeightPartials / 2; width >= 1; width /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, width);
  }
  return make_float2(max, sum);
}

// The sums of values of a round's chunks: of rows g and g + 8 of the warp's tiles of 16 dimensions,
// for head 4 n + t.
template <class D>
struct ValueSums {
  float of[D::kRound][D::kDimTiles][D::kColumns][2];

  __device__ __forceinline__ ValueSums(const typename D::Stream& stream,
                                       const typename D::Shared& shared, int slabs) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4;
    const int t = lane % 4;
    const int slab_bytes = 32 * slabs * slab_row_bytes(D::kDigits);
#pragma unroll
    for (int i = 0; i < D::kDimTiles; ++i) {
      const int tile_of_dims = warp + D::kWarps * i;
      if (tile_of_dims >= 2 * slabs) break;  // of the warp
      const int row = (16 * tile_of_dims + lane % 16) * slab_row_bytes(D::kDigits) + lane / 16 * 16;
#pragma unroll
      for (int u = 0; u < D::kRound; ++u) {
        int sums[D::kDigits][D::kColumns][4] = {};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          uint32_t a[2][D::kDigits][4];
#pragma unroll
          for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int digit = 0; digit < D::kDigits; ++digit) {
              load_matrices(a[s][digit], stream.tile(u, 2 + tile) + s * slab_bytes +
                                             swizzled(row + digit * kSlabDims, D::kDigits));
            }
          }
#pragma unroll
          for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int n = 0; n < D::kColumns; ++n) {
              const uint8_t* p =
                  shared.weights(u, 8 * n + g) + tile * kAttentionChunk + 32 * s + 4 * t;
              const uint32_t b0 = *reinterpret_cast<const uint32_t*>(p);
              const uint32_t b1 = *reinterpret_cast<const uint32_t*>(p + 16);
#pragma unroll
              for (int digit = 0; digit < D::kDigits; ++digit) {
                multiply_tile<int8_t, uint8_t>(sums[digit][n], a[s][digit], b0, b1);
              }
            }
          }
        }
#pragma unroll
        for (int n = 0; n < D::kColumns; ++n) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            int sum = 256 * sums[0][n][2 * h] + sums[0][n][2 * h + 1];
            if (D::kDigits == 2) sum += sums[D::kDigits - 1][n][2 * h];
            of[u][i][n][h] = static_cast<float>(sum);
          }
        }
      }
    }
  }
};

// A row that a warp codes: number 0 of an item is its key, 1 its value, others its queries.
struct RowToCode {
  RowKind kind;
  const float* values;

  __device__ __forceinline__ RowToCode(const AttentionArgs& args, const DecodeItem& item,
                                       int number) {
    kind = number == 0 ? RowKind::kKey : number == 1 ? RowKind::kValue : RowKind::kQuery;
    const bool is_query = kind == RowKind::kQuery;
    const float* rows = is_query ? args.q : kind == RowKind::kKey ? args.k : args.v;
    const int row = is_query ? item.row * args.heads + item.first_head + number - 2
                             : item.row * args.kv.kv_heads + item.kv_head;
    values = rows + static_cast<size_t>(row) * static_cast<size_t>(args.kv.head_dim);
  }
};

// Where a lane puts its bytes and its unit of the row's new key or value: into the tile of the
// cache, and of shared memory where that was fetched before.
template <class D>
struct AppendPlace {
  uint8_t* cached[D::kDigits];  // of dimension `lane`; those 32 further on lie `stride` apart
  int staged[D::kDigits];       // in the block's memory, below 0: nowhere
  int stride;
  float* unit;
  float* staged_unit;  // or null
  // Barriers of the tile and of its units.
  uint64_t* tile_arrived;
  uint64_t* units_arrived;

  __device__ __forceinline__ AppendPlace(const KvCache& kv, const DecodeItem& item,
                                         const typename D::Stream& stream, bool is_value,
                                         int slabs) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const size_t number = kv.tile_number(item.sequence, item.position, item.kv_head);
    const int c = item.end - 1 - item.begin;
    const int tile = item.position % kIntegerChunk / kAttentionChunk;
    uint8_t* const codes = static_cast<uint8_t*>(is_value ? kv.v : kv.k) +
                           number * static_cast<size_t>(stream.tile_bytes());
    const bool is_staged = c < D::kRound && (!is_value || stream.n_slots > 2);
    const int in_memory =
        static_cast<int>(stream.tile(c, (is_value ? 2 : 0) + tile) - stream.memory);
#pragma unroll
    for (int digit = 0; digit < D::kDigits; ++digit) {
      const int at = is_value ? value_byte(item.position, lane, digit, D::kDigits, 32 * slabs)
                              : key_byte(item.position, lane, digit, D::kDigits);
      cached[digit] = codes + at;
      staged[digit] = is_staged ? in_memory + at : -1;
    }
    stride = (is_value ? 32 : kAttentionChunk) * slab_row_bytes(D::kDigits);
    const int kind = is_value ? 1 + lane % 2 : 0;
    const int in_tile = item.position % kAttentionChunk;
    unit = kv.units_of(number) + kind * kAttentionChunk + in_tile;
    staged_unit = c < D::kRound ? &stream.units[c][tile][kind][in_tile] : nullptr;
    tile_arrived = stream.barriers.arrived + stream.pair(c, is_value ? 1 : 0);
    units_arrived = stream.barriers.arrived + stream.pair(c, 0);
  }

  // Writes a key or a value, by a warp.
  __device__ __forceinline__ void write(const CodedRow<D::kSlabs>& coded, bool is_value, int slabs,
                                        uint8_t* memory, int n_slots) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool is_staged = staged[0] >= 0;
    // The fetched tile must not overwrite the new row.
    if (is_staged) first_phase_ended(tile_arrived);
#pragma unroll
    for (int j = 0; j < D::kSlabs; ++j) {
      if (!D::kExact && j >= slabs) break;
#pragma unroll
      for (int digit = 0; digit < D::kDigits; ++digit) {
        const uint8_t byte = digit_byte<D::kDigits>(coded.code[j], digit);
        cached[digit][j * stride] = byte;
        if (is_staged) memory[staged[digit] + j * stride] = byte;
      }
    }
    if (lane <= (is_value ? 1 : 0)) {
      const float of_lane = lane == 0 ? coded.unit.unit : coded.unit.per_unit;
      *unit = of_lane;
      if (staged_unit != nullptr) {
        first_phase_ended(units_arrived);
        *staged_unit = of_lane;
      }
    }
    // For copies of the copy engine from here on: they read this row from the cache where it is not
    // staged, and with two slots they put values over a staged key. With more slots no copy follows
    // a staged row.
    if (!is_staged || n_slots == 2) all_writes_visible_to_copies();
  }
};

// Codes the queries of the item's heads, and the row's key and value where the item appends them.
// A warp's first row, and `place` where that is a key or a value, were found before the wait for
// the previous kernel.
template <class D>
__device__ __forceinline__ void code_rows(const AttentionArgs& args, const DecodeItem& item,
                                          RowToCode next, float scale, bool appends,
                                          const AppendPlace<D>& place, int slabs, int n_slots,
                                          uint8_t* memory, typename D::Shared& shared) {
  const KvCache& kv = args.kv;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / 32; i < item.heads + 2; i += D::kWarps) {
    if (i >= D::kWarps) next = RowToCode(args, item, i);
    const bool is_query = next.kind == RowKind::kQuery;
    if (!is_query && !appends) continue;
    WarpRow<D::kSlabs> row;
    row.load(next.values, kv.head_dim);
    const CodedRow<D::kSlabs> coded(row, next.kind, kv.head_dim, kv.type);
    if (!is_query) {
      place.write(coded, next.kind == RowKind::kValue, slabs, memory, n_slots);
      if (lane == 0 && !coded.finite) set_fault(args.fault, args.layer + 1);
      continue;
    }
    const int head = i - 2;
#pragma unroll
    for (int j = 0; j < D::kSlabs; ++j) {
      shared.q[2 * head][lane + 32 * j] = digit_byte<2>(coded.code[j], 0);
      shared.q[2 * head + 1][lane + 32 * j] = digit_byte<2>(coded.code[j], 1);
    }
    if (lane == 0) shared.factor[head] = coded.factor(scale, kv.type);
  }
}

// Turns sums `from` of shared.rows back and writes them as the result of head `head`, by a warp.
template <class D>
__device__ __forceinline__ void write_result(const AttentionArgs& args, const DecodeItem& item,
                                             const typename D::Shared& shared, int from, int head) {
  const int head_dim = args.kv.head_dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  WarpRow<D::kSlabs> row;
  row.load(shared.rows[from], head_dim);
  row.turn(head_dim);
  const float factor = output_factor(shared.sum[from], head_dim, args.kv.type);
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
    for (int w = t; w < count * words; w += D::kThreads) {
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
// that wait are few: so waiting is safe. Returns the number of this block among the `mergers`,
// below 0 for none of them; all states are there then.
template <class D>
__device__ __forceinline__ int join_mergers(const DecodeItem& item, int mergers, int32_t* done,
                                            typename D::Shared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    shared.ticket = atomicAdd(done, 1);
  }
  __syncthreads();
  const int part = shared.ticket - (item.workers - mergers);
  if (part < 0) return part;
  if (threadIdx.x == 0) {
    while (load_acquire(done) < item.workers) {
    }
  }
  __syncthreads();
  return part;
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

  // Chunk u of a round.
  __device__ __forceinline__ void add(const ValueSums<D>& sums, const typename D::Shared& shared,
                                      int u) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) {
      const float2 state = shared.state[u][4 * n + t];
      const float larger = fmaxf(max[n], state.x);
      const float before = power_of_two(max[n] - larger);
      const float chunk = power_of_two(state.x - larger);
      max[n] = larger;
      sum[n] = fmaf(state.y, chunk, sum[n] * before);
#pragma unroll
      for (int i = 0; i < D::kDimTiles; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          o[i][n][h] = fmaf(sums.of[u][i][n][h], chunk, o[i][n][h] * before);
        }
      }
    }
  }

  // Into shared memory, for write_result().
  __device__ __forceinline__ void share(int slabs, typename D::Shared& shared) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4;
    const int t = lane % 4;
#pragma unroll
    for (int n = 0; n < D::kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < D::kDimTiles; ++i) {
        const int d = 16 * (warp + D::kWarps * i) + g;
        if (d >= 32 * slabs) break;
        shared.rows[4 * n + t][d] = o[i][n][0];
        shared.rows[4 * n + t][d + 8] = o[i][n][1];
      }
      if (warp == 0 && g == 0) shared.sum[4 * n + t] = sum[n];
    }
  }
};

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
  item.begin = item.chunks * worker / item.workers;
  item.end = item.chunks * (worker + 1) / item.workers;
  return item;
}

// All chunks of the item: each into `merged`, or its state into the workspace where the row has
// several workers.
template <class D>
__device__ __forceinline__ void attend_chunks(const typename D::Stream& stream,
                                              const DecodeItem& item, float* states,
                                              size_t head_states, int state_size, int head_dim,
                                              int slabs, MergedHeads<D>& merged,
                                              typename D::Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const bool alone = item.workers == 1;
  const int n_chunks = item.end - item.begin;
#pragma unroll 1
  for (int c = 0; c < n_chunks; c += D::kRound) {
    const int next = c + D::kRound;
#pragma unroll
    for (int u = 0; u < D::kRound; ++u) stream.wait(c + u, 0);
    score_round<D>(stream, item, shared, c, slabs);
    __syncthreads();
    const auto fill_next_keys = [&] {
      if (stream.n_slots == 2 || next >= n_chunks) return;
#pragma unroll 1
      for (int u = 0; u < D::kRound; ++u) stream.fill(next + u, 0);
    };
    if (stream.n_slots == 2) stream.fill(c, 1);
    if (!D::kIsSmall) fill_next_keys();
    {
      const int u = warp / D::kHeads;
      const int head = warp % D::kHeads;
      if (u < D::kRound && c + u < n_chunks && head < item.heads) {
        const int first = (item.begin + c + u) * kIntegerChunk;
        const float2 state =
            weigh_chunk<D>(stream.units_of(c + u), shared, u, head, item.position + 1 - first);
        if (lane == 0) shared.state[u][head] = state;
        // What is behind the sums, its padding included.
        if (!alone && lane < state_size - head_dim) {
          states[static_cast<size_t>(head) * head_states +
                 static_cast<size_t>((c + u) * state_size + head_dim + lane)] = lane == 0 ? state.x
                                                                                : lane == 1
                                                                                    ? state.y
                                                                                    : 0.0f;
        }
      }
    }
    __syncthreads();
    if (D::kIsSmall) fill_next_keys();  // their units take the place of these
#pragma unroll
    for (int u = 0; u < D::kRound; ++u) stream.wait(c + u, 1);
    const ValueSums<D> sums(stream, shared, slabs);
#pragma unroll
    for (int u = 0; u < D::kRound; ++u) {
      if (c + u >= n_chunks) break;
      if (alone) {
        merged.add(sums, shared, u);
        continue;
      }
#pragma unroll
      for (int n = 0; n < D::kColumns; ++n) {
        const int head = 4 * n + t;
        if (head >= item.heads) break;
        float* to = states + static_cast<size_t>(head) * head_states + (c + u) * state_size;
#pragma unroll
        for (int i = 0; i < D::kDimTiles; ++i) {
          const int d = 16 * (warp + D::kWarps * i) + g;
          if (d < head_dim) to[d] = sums.of[u][i][n][0];
          if (d + 8 < head_dim) to[d + 8] = sums.of[u][i][n][1];
        }
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

  const int bytes = n_slots * code_tile_bytes(kv.tile_dims(), D::kDigits);
  auto& shared = *reinterpret_cast<typename D::Shared*>(memory + bytes);
  TileBarriers barriers{shared.arrived};
  barriers.start();
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
  const AppendPlace<D> place(kv, item, stream, warp == 1, slabs);
  float* const block_states = states.of(row, args.heads, item.first_head, item.begin);
  const size_t head_states =
      static_cast<size_t>(states.max_chunks) * static_cast<size_t>(states.size);
  // Where contexts are short the next kernel's blocks would only be in the way until here.
  const bool starts_late = item.chunks <= kLateStartChunks;
  if (!starts_late) let_next_start();
  wait_for_previous();
  if (starts_late) let_next_start();
  // Copies of the threads themselves are not seen by single warps.
  if (!kBulkCopies && appends) barriers.wait_for_all();
  code_rows<D>(args, item, row_to_code, scale, appends, place, slabs, n_slots, memory, shared);
  __syncthreads();

  MergedHeads<D> merged;
  attend_chunks<D>(stream, item, block_states, head_states, states.size, kv.head_dim, slabs, merged,
                   shared);
  const bool alone = item.workers == 1;
  if (alone) {
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
template <int kSlabs, int kDigits, int kColumns, int kRound, int kWarps = kDecodeWarps>
bool launch_if(const DecodePlan& plan, const AttentionArgs& args, const ChunkStates& states,
               cudaStream_t stream) {
  using D = Decode<kSlabs, kDigits, kColumns, kRound, kWarps>;
  if (plan.slabs != kSlabs || digit_count(args.kv.type) != kDigits || plan.columns != kColumns ||
      plan.round != kRound || plan.launch.threads != D::kThreads) {
    return false;
  }
  static_assert(sizeof(typename D::Shared) <=
                decode_extra_bytes(D::kDims, kColumns, kRound, kWarps));
  launch(decode_kernel<D>, plan.launch, stream, args, states, head_scale(args.kv.head_dim),
         plan.slots);
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
