// qkv, attn_out, ffn_up and ffn_down for many activation rows ("tokens") on compute capability 9.0:
// as gemm.cu, with the products of whole warpgroups (device/wgmma.cuh).
//
// A block makes a tile of weight rows x tokens. The tokens' codes come into a ring of stages in
// shared memory, for all its warpgroups. Each warpgroup multiplies them with 64 weight rows of its
// own. A warp brings the weights of its 16 rows by itself, in two bits as they are, and unpacks
// them in registers: the two bits of a weight become the top of a byte, as in ternary_tile.cuh.
//
// Of up to 64 tokens a cluster of kParts blocks makes a tile. Each multiplies its share of the
// columns, sends every block the sums of that block's tokens, then adds up and stores its own. A
// block leaves when its inbox is full: nothing more is sent to it, and it reads no other block's
// memory.
//
// Rows g and g + 8 of a warp's sixteen are the two rows of a pair. Lane 4 g + t has the sums of
// both for tokens 8 j + 2 t and 8 j + 2 t + 1. In a cluster, where they are few, it stores them
// without an exchange; else they go through shared memory once more.
#include <type_traits>
#include <utility>

#include "kernels/cuda/device/bulk.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/ternary_tile.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/linear_kernels.cuh"

namespace edgellm::cuda {
namespace {

constexpr int kGroupThreads = 128;

// kParts blocks of a cluster share the columns of a tile.
template <size_t I, int kParts_>
struct Tiling {
  static constexpr WgmmaCut kCut = kWgmmaTiles[I];
  static constexpr int kParts = kParts_;
  static constexpr int kGroups = kCut.groups;
  static constexpr int kTokens = kCut.tokens;
  static constexpr int kStages = kCut.stages;
  static constexpr int kSlots = kCut.slots;
  static constexpr int kBlocks = kCut.blocks;
  static constexpr int kThreads = kCut.threads();
  static constexpr int kStageBytes = kCut.stage_bytes();
  static constexpr int kPairs = kCut.pairs();
  static constexpr int kSums = kTokens / 2;  // of a lane
  // Tokens whose results a block stores.
  static constexpr int kOwnTokens = kTokens / kParts;
  static constexpr int kOwnSums = kSums / kParts;
  static_assert(kOwnTokens % 8 == 0 && kOwnSums % 4 == 0);

  struct Shared {
    RowScale scales[kOwnTokens];
    int positions[kOwnTokens];
    float2 factors[kGroups][kOwnTokens];  // of the first and second rows of pairs
    alignas(8) uint64_t arrived[kStages];
    uint64_t read[kStages];
    Inbox sums;
  };
  // What a block gets: from each part the sums of its own tokens.
  using PartSums = int4[kParts][kOwnTokens / 8][kThreads];
  static_assert(sizeof(Shared) <= kMostStaticShared);
};

// The blocks of columns that a block of the cluster multiplies.
struct BlockRange {
  int first, end;

  __device__ __forceinline__ BlockRange(int row_words, int part, int parts)
      : first(part * divide_up(row_words, 8) / parts),
        end((part + 1) * divide_up(row_words, 8) / parts) {}
};

// The weights of a warp's 16 rows. They come in chunks of kWeightChunk blocks of columns, 128 bytes
// of a row: less at a time would cost the cache as much. A lane copies 16 bytes of every fourth
// row. All slots but that of the present chunk are under way. (Loads into registers that are used
// several turns later have no order: to wait for one is to wait for all.)
template <int kSlots>
struct WarpWeights {
  static constexpr int kRowPieces = 2 * kWeightChunk;  // of 16 bytes
  static constexpr int kRows = 16;
  static constexpr int kSlotBytes = kRows * kRowPieces * 16;
  static_assert(kSlotBytes == kWeightChunkBytes);

  const uint4* row[4];  // that the lane copies, from its first piece on
  uint32_t exists = 0;  // bit i: row[i]
  int pieces;           // of a row, from the lane's first on
  uint8_t* memory;      // [kSlots][kRows][kRowPieces]
  int lane_place;       // in a slot, of the lane's words of the first block

  template <class Op>
  __device__ __forceinline__ WarpWeights(const Op& op, int first_pair, const BlockRange& range,
                                         uint8_t* memory_)
      : memory(memory_) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int piece = 2 * range.first + lane % kRowPieces;
    pieces = min(op.row_words / 4, 2 * range.end) - piece;
    const int g = lane / 4;
    const int t = lane % 4;
    lane_place = place(g, t / 2) + t % 2 * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pair = first_pair + 4 * i + lane / kRowPieces;
      const PairRows rows = op.rows(min(pair, op.pairs() - 1));
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        const bool there = pair < op.pairs() && rows.words[which] != nullptr;
        if (there) exists |= 1u << (2 * which + i);
        row[2 * which + i] =
            reinterpret_cast<const uint4*>(there ? rows.words[which] : rows.words[0]) + piece;
      }
    }
#pragma unroll 1
    for (int i = 0; i < kSlots - 1; ++i) copy(i);
  }
  // Waits for a chunk and starts to copy the one that takes the place of the chunk before.
  __device__ __forceinline__ void start(int chunk) const {
    wait_for_copies_but<kSlots - 2>();
    __syncwarp();
    copy(chunk + kSlots - 1);
  }
  // Two words of block i of a chunk, of rows g and g + 8.
  __device__ __forceinline__ void read(int chunk, int i, uint2 (&words)[2]) const {
    const uint8_t* at = memory + chunk % kSlots * kSlotBytes + (lane_place ^ 32 * i);
    words[0] = *reinterpret_cast<const uint2*>(at);
    words[1] = *reinterpret_cast<const uint2*>(at + kSlotBytes / 2);
  }

 private:
  // Of a piece of a row in a slot. Lanes read 32 bytes of each of four rows together.
  __device__ static int place(int row, int piece) {
    return 16 * (row * kRowPieces + (piece ^ row % 4 * 2));
  }
  // Zeros where there is nothing. One group of copies.
  __device__ __forceinline__ void copy(int chunk) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint8_t* slot = memory + chunk % kSlots * kSlotBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool valid = kRowPieces * chunk < pieces && (exists >> i & 1) != 0;
      copy_async_or_zero(slot + place(4 * i + lane / kRowPieces, lane % kRowPieces),
                         row[i] + (valid ? kRowPieces * chunk : 0), valid);
    }
    end_of_copies();
  }
};

// Adds the products of two steps of 32 columns, whose codes begin at `codes`. At most these are
// under way when it returns.
template <int kSums>
__device__ __forceinline__ void multiply_half(int (&sums)[kSums], uint32_t (&a)[2][4],
                                              uint64_t codes) {
  hold(a[0]);
  hold(a[1]);
  start_products();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    multiply_registers(sums, a[half], codes + operand_step(half), true);
  }
  end_products();
}
// Waits for all groups of products except the newest. `a`: the rows of the one before, which stay
// in their registers until then.
__device__ __forceinline__ void wait_for_half(uint32_t (&a)[2][4]) {
  wait_for_products<1>();
  hold(a[0]);
  hold(a[1]);
}

// The codes of a tile's tokens. Block i of the columns goes to stage i % kStages.
template <class T>
struct CodeStream {
  const int8_t* from;  // the first block
  size_t block_bytes;  // of all tokens
  int bytes;           // of the tile's tokens
  int blocks;
  uint8_t* memory;
  typename T::Shared& shared;

  __device__ __forceinline__ CodeStream(const QuantisedRows& rows, int first_token,
                                        const BlockRange& range, uint8_t* memory_,
                                        typename T::Shared& shared_)
      : block_bytes(static_cast<size_t>(rows.tokens) * kBlockColumns),
        bytes(min(T::kTokens, rows.tokens - first_token) * kBlockColumns),
        blocks(range.end - range.first),
        memory(memory_),
        shared(shared_) {
    from = rows.codes + static_cast<size_t>(range.first) * block_bytes +
           static_cast<size_t>(first_token) * kBlockColumns;
  }

  // Starts to copy a block, if there is one; by one thread. A stage that was used before must have
  // been read by all warpgroups.
  __device__ __forceinline__ void fill(int block) const {
    if (block >= blocks) return;
    const int stage = block % T::kStages;
    if (block >= T::kStages) barrier_wait(&shared.read[stage], (block / T::kStages & 1) ^ 1);
    barrier_expect(&shared.arrived[stage], bytes);
    copy_bulk(memory + stage * T::kStageBytes, from + static_cast<size_t>(block) * block_bytes,
              bytes, &shared.arrived[stage]);
  }
};

// Makes the sums of a warpgroup's 64 rows and all tokens. Weights are unpacked while the tensor
// cores work on the half of a block before. A stage is filled two blocks after its use, when the
// other warpgroups have probably read it as well.
//
// A lone warp takes four cycles and more for an instruction, so those of a turn bound the speed of
// small tiles: the blocks of a chunk are unrolled, which makes their places constants.
template <class T>
__device__ __forceinline__ void multiply_tile(const WarpWeights<T::kSlots>& weights,
                                              const CodeStream<T>& codes, int (&sums)[T::kSums]) {
  static_assert(T::kStages % kWeightChunk == 0);
  constexpr int kRounds = T::kStages / kWeightChunk;  // chunks that the stages hold
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint64_t stages = operand<kBlockColumns>(shared_address(codes.memory));
  uint32_t first[2][4] = {};
  uint32_t second[2][4] = {};
  hold(sums);
#pragma unroll 1
  for (int chunk = 0; kWeightChunk * chunk < codes.blocks; ++chunk) {
    weights.start(chunk);
    const int begin = chunk % kRounds * kWeightChunk;  // the first stage
    const uint32_t parity = chunk / kRounds & 1;
#pragma unroll
    for (int i = 0; i < kWeightChunk; ++i) {
      const int block = kWeightChunk * chunk + i;
      if (block >= codes.blocks) break;
      uint2 words[2];
      weights.read(chunk, i, words);
      unpack_weights(words[0].x, words[1].x, first);
      barrier_wait(&codes.shared.arrived[begin + i], parity);
      const uint64_t at = stages + static_cast<uint64_t>((begin + i) * (T::kStageBytes / 16));
      multiply_half(sums, first, at);
      wait_for_half(second);
      // The block before has been read.
      const int before = i > 0 ? begin + i - 1 : (begin + T::kStages - 1) % T::kStages;
      if (lane == 0 && block > 0) barrier_arrive_at(&codes.shared.read[before]);
      if (warp == i && lane == 0) codes.fill(block + T::kStages - 2);
      __syncwarp();
      unpack_weights(words[0].y, words[1].y, second);
      multiply_half(sums, second, at + operand_step(2));
      wait_for_half(first);
    }
  }
  wait_for_products<0>();
  hold(second[0]);
  hold(second[1]);
  hold(sums);
}

// What the sums of a pair and a token are scaled with.
__device__ __forceinline__ float2 factors_of(const PairRows& rows, const RowScale& scale) {
  return make_float2((rows.scale[0] / scale.s) * scale.r, (rows.scale[1] / scale.s) * scale.r);
}

// Usually all pairs of a warpgroup have the same scales. Then a thread divides for one token, and
// for the first pair: the last may lack a second row. Returns whether `factors` are there, for the
// warpgroup's threads behind the next barrier.
template <int kTokens, class Op>
__device__ __forceinline__ bool share_factors(const Op& op, int group_pair, const RowScale* scales,
                                              float2* factors) {
  if (!op.share_scales(group_pair, min(group_pair + 31, op.pairs() - 1))) return false;
  const PairRows rows = op.rows(group_pair);
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  for (int i = thread; i < kTokens; i += kGroupThreads) factors[i] = factors_of(rows, scales[i]);
  return true;
}

// Makes the sums of a lane's pair its results, in place.
template <int kSums, class Op>
__device__ __forceinline__ void scale_sums(const Op& op, int group_pair, int pair, int barrier,
                                           const RowScale* scales, float2* factors,
                                           int (&sums)[kSums]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const bool share = share_factors<2 * kSums>(op, group_pair, scales, factors);
  const PairRows rows = op.rows(min(pair, op.pairs() - 1));
  const auto scale_all = [&](const auto& factor_of) {
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const int token = 2 * i + 2 * t + b;
        const float2 by = factor_of(token);
        const int sum = scales[token].sum;
        const int low = unscaled(sums[i + b]) - sum;
        const int high = unscaled(sums[i + 2 + b]) - sum;
        sums[i + b] = __float_as_int(static_cast<float>(low) * by.x);
        sums[i + 2 + b] = __float_as_int(static_cast<float>(high) * by.y);
      }
    }
  };
  if (share) {
    barrier_sync(barrier, kGroupThreads);  // the factors are there
    scale_all([&](int token) { return factors[token]; });
  } else {
    scale_all([&](int token) { return factors_of(rows, scales[token]); });
  }
}

// The token of a lane's k-th result.
__device__ __forceinline__ int token_of_result(int k) {
  return k / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + k % 2;
}

// The targets of a lane's results: of a pair, for some of its tokens. They are located together:
// the thread waits for memory once.
template <class Op, int kCount>
struct LaneTargets {
  typename Op::Target target[kCount];

  // Those of tokens from `end` on are the last one's.
  __device__ __forceinline__ LaneTargets(const Op& op, int pair, int first_token, int end) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      target[k] = op.locate(first_token + min(token_of_result(k), end - 1), pair);
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) op.prefetch(target[k]);
  }
  // Lets the op store the results of tokens before `end`.
  __device__ __forceinline__ void store(const Op& op, const int (&results)[2 * kCount],
                                        int end) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int at = k / 2 * 4 + k % 2;
      if (token_of_result(k) < end) {
        op.store(target[k], __int_as_float(results[at]), __int_as_float(results[at + 2]));
      }
    }
  }
};

// The sums of a whole tile on their way from the lanes that made them to those that store them:
// [token][pair], both rows of a pair. The padding spreads what eight lanes write together, four
// tokens, over all banks.
template <class T>
struct TileSums {
  static constexpr int kPitch = T::kPairs + 2;
  static_assert(T::kTokens * kPitch * sizeof(int2) <= T::kCut.shared_bytes() - 1024);
  int2* memory;

  __device__ __forceinline__ int2* of(int token, int pair) const {
    return memory + token * kPitch + pair;
  }
  // Those of a lane, whose pair of the tile is given.
  __device__ __forceinline__ void write(int pair, const int (&sums)[T::kSums]) const {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < T::kSums; i += 4) {
      *of(2 * i + 2 * t, pair) = make_int2(sums[i], sums[i + 2]);
      *of(2 * i + 2 * t + 1, pair) = make_int2(sums[i + 1], sums[i + 3]);
    }
  }
};

// Scales the sums of a lane's pair of the tile, `at`, and lets the op store them by their column:
// those of the warp's share of the tokens before `end`. Returns whether the column found them all
// finite. factor_of(token): what the sums are scaled with. Without branches for tokens where the
// tile is whole.
template <class T, bool kWhole, class Column, class FactorOf>
__device__ __forceinline__ bool store_pair(const Column& column, const TileSums<T>& tile, int at,
                                           int first_token, int end,
                                           const typename T::Shared& shared,
                                           const FactorOf& factor_of) {
  // What a batch of them is combined with is read together.
  constexpr int kBatch = std::is_empty_v<typename Column::Loaded> ? 4 : 8;
  static_assert(T::kTokens % kBatch == 0);
  bool finite = true;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x) / 32 * kBatch; first < end;
       first += T::kThreads / 32 * kBatch) {
    typename Column::Loaded loaded[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int token = kWhole ? first + k : min(first + k, end - 1);
      loaded[k] = column.load(first_token + token, shared.positions[token]);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int token = first + k;
      if (!kWhole && token >= end) break;
      const int2 sums = *tile.of(token, at);
      const float2 by = factor_of(token);
      const int of_codes = shared.scales[token].sum;
      finite = column.store(first_token + token, loaded[k],
                            static_cast<float>(unscaled(sums.x) - of_codes) * by.x,
                            static_cast<float>(unscaled(sums.y) - of_codes) * by.y) &&
               finite;
    }
  }
  return finite;
}

// Scales the sums of a tile and lets the op store them, of tokens before `end`. A warp takes 32
// pairs of one token after the other: so neighbouring lanes read and write neighbouring values, and
// the code is a short loop. (Unrolled for all sums of a lane it came too late for the warps.)
template <class T, class Op>
__device__ __forceinline__ void store_tile(const Op& op, const TileSums<T>& tile, int first_pair,
                                           int first_token, int end,
                                           const typename T::Shared& shared) {
#pragma unroll 1
  for (int group = 0; group < T::kGroups; ++group) {
    const int group_pair = first_pair + 32 * group;
    const int at = 32 * group + static_cast<int>(threadIdx.x) % 32;
    if (first_pair + at >= op.pairs()) return;
    op.with_column(first_pair + at, [&](const auto& column) {
      const auto store = [&](const auto& factor_of) {
        op.note(end == T::kTokens
                    ? store_pair<T, true>(column, tile, at, first_token, end, shared, factor_of)
                    : store_pair<T, false>(column, tile, at, first_token, end, shared, factor_of));
      };
      if (op.share_scales(group_pair, min(group_pair + 31, op.pairs() - 1))) {
        store([&](int token) { return shared.factors[group][token]; });
      } else {
        const PairRows rows = op.rows(first_pair + at);
        store([&](int token) { return factors_of(rows, shared.scales[token]); });
      }
    });
  }
}

// Sends each part the sums of its tokens.
template <class T>
__device__ __forceinline__ void send_sums(const int (&sums)[T::kSums], int part,
                                          typename T::PartSums& part_sums, Inbox& inbox) {
  constexpr int kEights = T::kOwnTokens / 8;
#pragma unroll
  for (int i = 0; i < T::kTokens / 8; ++i) {
    inbox.send(i / kEights, &part_sums[part][i % kEights][threadIdx.x],
               make_int4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
  }
}

// Adds up what all parts have sent.
template <class T>
__device__ __forceinline__ void add_parts(const typename T::PartSums& part_sums,
                                          int (&sums)[T::kOwnSums]) {
#pragma unroll
  for (int i = 0; i < T::kOwnTokens / 8; ++i) {
    int4 sum = part_sums[0][i][threadIdx.x];
#pragma unroll
    for (int from = 1; from < T::kParts; ++from) {
      const int4 part = part_sums[from][i][threadIdx.x];
      sum = make_int4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
    }
    sums[4 * i] = sum.x;
    sums[4 * i + 1] = sum.y;
    sums[4 * i + 2] = sum.z;
    sums[4 * i + 3] = sum.w;
  }
}

// The tile of pairs and tokens from the named ones on; this block has part `part` of its columns.
template <class T, class Op>
__device__ __forceinline__ void make_tile(const Op& op, const QuantisedRows& rows, int first_pair,
                                          int first_token, int part, uint8_t* memory) {
  __shared__ typename T::Shared shared;
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      barrier_init(&shared.arrived[i], 1);
      barrier_init(&shared.read[i], 4 * T::kGroups);
    }
    barriers_initialised();
    if constexpr (T::kParts > 1) shared.sums.init(sizeof(typename T::PartSums));
  }
  if constexpr (T::kParts > 1) cluster_arrive();
  const int t = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int group_pair = first_pair + 32 * group;
  const int warp_pair = group_pair + t / 32 * 8;
  const BlockRange range(op.row_words, part, T::kParts);
  uint8_t* weight_memory = memory + T::kStages * T::kStageBytes;
  const WarpWeights<T::kSlots> weights(
      op, warp_pair, range, weight_memory + threadIdx.x / 32 * (T::kSlots * kWeightChunkBytes));
  wait_for_previous();
  const CodeStream<T> codes(rows, first_token, range, memory, shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages - 2; ++i) codes.fill(i);
  }
  const int own_token = first_token + part * T::kOwnTokens;
  for (int i = static_cast<int>(threadIdx.x); i < T::kOwnTokens; i += T::kThreads) {
    const int token = min(own_token + i, rows.tokens - 1);
    shared.scales[i] = {rows.sum[token], rows.s[token], rows.r[token]};
    shared.positions[i] = op.position(token);
  }
  if constexpr (T::kParts > 1) cluster_wait();  // the inboxes of all parts are open
  __syncthreads();                              // the scales and the barriers are there
  int sums[T::kSums] = {};
  multiply_tile<T>(weights, codes, sums);
  const int pair = warp_pair + t % 32 / 4;
  const int own_end = min(T::kOwnTokens, rows.tokens - own_token);
  if constexpr (T::kParts > 1) {
    auto& part_sums = *reinterpret_cast<typename T::PartSums*>(
        weight_memory + T::kThreads / 32 * T::kSlots * kWeightChunkBytes);
    send_sums<T>(sums, part, part_sums, shared.sums);
    // A part without tokens or pairs locates others, whose values may be changing, and stores
    // nothing.
    const LaneTargets<Op, T::kOwnSums / 2> targets(
        op, min(pair, op.pairs() - 1), min(own_token, rows.tokens - 1), max(own_end, 1));
    shared.sums.wait();
    if (group_pair >= op.pairs() || own_end <= 0) return;
    int own_sums[T::kOwnSums];
    add_parts<T>(part_sums, own_sums);
    scale_sums(op, group_pair, pair, 1 + group, shared.scales, shared.factors[group], own_sums);
    if (pair < op.pairs()) targets.store(op, own_sums, own_end);
  } else {
    if (group_pair < op.pairs()) {
      share_factors<T::kTokens>(op, group_pair, shared.scales, shared.factors[group]);
    }
    wait_for_copies();  // of weights behind the last ones: zeros
    __syncthreads();    // nobody reads codes and weights any more
    const TileSums<T> tile{reinterpret_cast<int2*>(memory)};
    tile.write(pair - first_pair, sums);
    __syncthreads();  // sums and factors are there
    store_tile<T>(op, tile, first_pair, first_token, own_end, shared);
  }
}

// Block (i, j): part i % T::kParts of tile i / T::kParts of the tokens and tile j of the pairs.
// Neighbours read the same weights.
template <class T, class Op>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    wgmma_gemm_kernel(Op op, QuantisedRows rows) {
  extern __shared__ uint8_t shared_memory[];
  let_next_start();
  const int tile = static_cast<int>(blockIdx.x) / T::kParts;
  const int part = static_cast<int>(blockIdx.x) % T::kParts;
  make_tile<T>(op, rows, static_cast<int>(blockIdx.y) * T::kPairs, tile * T::kTokens, part,
               shared_memory + (1024 - (shared_address(shared_memory) & 1023)) % 1024);
}

// Launches the instance if the plan names it.
template <size_t I, int kParts, class Op>
bool launch_tile(const WgmmaGemmPlan& plan, const Op& op, const QuantisedRows& rows,
                 cudaStream_t stream) {
  if (plan.tile != static_cast<int>(I) || plan.parts != kParts) return false;
  if constexpr (kParts == 1) {
    launch(wgmma_gemm_kernel<Tiling<I, 1>, Op>, plan.launch, stream, op, rows);
    return true;
  } else if constexpr (kParts <= kWgmmaTiles[I].max_parts) {
    launch_clusters(wgmma_gemm_kernel<Tiling<I, kParts>, Op>, kParts, plan.launch, stream, op,
                    rows);
    return true;
  }
  return false;
}

template <class Op, size_t... I>
void launch_tiles(const WgmmaGemmPlan& plan, const Op& op, const QuantisedRows& rows,
                  cudaStream_t stream, std::index_sequence<I...>) {
  require_instance((launch_tile<I, 1>(plan, op, rows, stream) || ...) ||
                   (launch_tile<I, 2>(plan, op, rows, stream) || ...) ||
                   (launch_tile<I, 4>(plan, op, rows, stream) || ...) ||
                   (launch_tile<I, 8>(plan, op, rows, stream) || ...));
}

}  // namespace

template <class Op>
void multiply(const WgmmaGemmPlan& plan, const Input& in, const Op& op, int rows,
              const Workspace& workspace, cudaStream_t stream) {
  const QuantisedRows quantised =
      quantise_rows(plan.quantise, CodeOrder::kBlocks, in, rows, workspace, stream);
  launch_tiles(plan, op, quantised, stream, std::make_index_sequence<kNumWgmmaTiles>());
}

template void multiply(const WgmmaGemmPlan&, const Input&, const QkvOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const WgmmaGemmPlan&, const Input&, const ProjectOp&, int, const Workspace&,
                       cudaStream_t);
template void multiply(const WgmmaGemmPlan&, const Input&, const FfnUpOp&, int, const Workspace&,
                       cudaStream_t);

}  // namespace edgellm::cuda
