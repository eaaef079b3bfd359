// attn_out, ffn_up and ffn_down of a layer in one launch, for some activation rows ("tokens") of a
// small model (compute capability 9.0).
//
// Tokens do not meet in these ops. So a cluster takes 24 of them through all three, and what would
// be six launches with a wait of the whole GPU between them is a few waits of eight blocks. Each
// block has an eighth of the weight rows of every product, which all wait in its shared memory, and
// an eighth of the tokens, which it normalises and quantises for all blocks:
//   1. attention's output of its tokens, in codes, to all blocks;
//   2. attn_out: its rows of the residual stream, each token to the block that has it;
//   3. the residual stream of its tokens, in codes, to all blocks;
//   4. ffn_up: its pairs of gate and up. All blocks tell each other the largest magnitudes, then
//      the codes;
//   5. ffn_down: its rows of the residual stream, into memory.
// A block sends for the next step when it has all of this one, so what one step has read may be
// written in the next: codes of one product take the place of those before.
//
// Products are those of gemm_wgmma.cu: weights from registers, codes from shared memory. Warp w of
// a warpgroup has rows 16 w .. 16 w + 15 of its 64. Where a block's rows are fewer than its
// warpgroups could take, they share the columns.
#include "kernels/cuda/device/bulk.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/quantise.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/ternary_tile.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/linear_ops.cuh"
#include "kernels/cuda/plan/layer_end.h"

namespace edgellm::cuda {
namespace {

constexpr int kTokens = kLayerEndTokens;
constexpr int kTokenTiles = kTokens / 8;
constexpr int kOwnTokens = kLayerEndOwnTokens;
constexpr int kGroups = kLayerEndGroups;
constexpr int kEndWarps = kLayerEndWarps;
constexpr int kEndThreads = 32 * kEndWarps;
constexpr int kQuads = kLayerEndQuads;
constexpr int kGatedQuads = kLayerEndGatedQuads;
constexpr int kSums = kTokens / 2;  // of a lane

struct LayerEnd {
  WeightMatrix out, gate, up, down;
  const float* y;         // [rows, q_dim] attention's output
  const float* out_gain;  // [q_dim] or null
  float out_eps;
  const float* ffn_gain;  // [dim]
  float ffn_eps;
  GateActivation act;
  float* x;  // [rows, dim] in and out
  int q_dim, dim, ffn;
  int rows;
  int32_t* fault;
  int layer;
};

// What a token's sums of attn_out or ffn_up are scaled with, as it is sent.
struct alignas(16) TokenScale {
  int32_t sum;  // of the codes
  float s;      // codes per unit
  float r;      // RMS factor
  // Where all rows have the same scale: (scale / s) * r of attn_out or gate, and of up.
  float factor, up_factor;

  static constexpr int kSentBytes = 20;
};

struct EndShared {
  Inbox out_codes, up_codes, down_codes;  // and the tokens' scales
  Inbox stream;                           // the block's tokens of the residual stream
  Inbox maxima;
  uint64_t arrived[3];  // weights and gain of each product
  TokenScale out[kTokens], up[kTokens];
  // Of ffn_down, from each block: largest magnitude, and the sum of the codes.
  alignas(16) uint32_t max[kTokens][kClusterBlocks];
  alignas(16) int32_t sum[kTokens][kClusterBlocks];
  float down_s[kTokens];
  float down_factors[kTokens];  // where all rows have the same scale
};
static_assert(sizeof(EndShared) <= kMostStaticShared);

// The scale of each matrix's first row.
struct FirstScales {
  float out, gate, up, down;

  __device__ explicit FirstScales(const LayerEnd& layer)
      : out(layer.out.scale[0]),
        gate(layer.gate.scale[0]),
        up(layer.up.scale[0]),
        down(layer.down.scale[0]) {}
};

// What of the products is this block's.
struct EndShare {
  int rank;
  int first_tile, tiles;  // of the residual stream's rows
  int first_step, steps;  // of ffn_down's columns

  __device__ explicit EndShare(const LayerEndCut& cut)
      : rank(cluster_rank()),
        first_tile(rank * cut.tiles() / kClusterBlocks),
        tiles((rank + 1) * cut.tiles() / kClusterBlocks - first_tile),
        first_step(rank * cut.down_steps / kClusterBlocks),
        steps((rank + 1) * cut.down_steps / kClusterBlocks - first_step) {}
};

// Starts to copy `rows` weight rows, which lie one behind the other; all warps call it. A copy for
// them all is made by warp `warp`; else each warp copies rows of its own, one lane: a warp's copies
// would go one after the other.
__device__ __forceinline__ void fetch_rows(const WeightMatrix& w, int first_row, int rows,
                                           int steps, uint8_t* to, uint64_t* arrived, int warp) {
  if (threadIdx.x % 32 != 0) return;
  const int own_warp = static_cast<int>(threadIdx.x) / 32;
  const int bytes = 16 * steps;
  const uint32_t* from = w.words + static_cast<size_t>(first_row) * static_cast<size_t>(4 * steps);
  if (LayerEndCut::pitch(steps) == bytes) {
    if (own_warp == warp) copy_bulk(to, from, rows * bytes, arrived);
    return;
  }
#pragma unroll 1
  for (int row = own_warp; row < rows; row += kEndWarps) {
    copy_bulk(to + row * LayerEndCut::pitch(steps), from + row * 4 * steps, bytes, arrived);
  }
}

// 16 bytes of a token's codes, of K step `step`. Byte 4 t + i of piece f is column 16 t + 4 f + i:
// as ternary_tile.cuh unpacks weights, lane t of four multiplies columns 16 t .. 16 t + 15.
// Swizzled as wgmma wants it for rows of 128 bytes.
__device__ __forceinline__ uint4* code_piece(uint8_t* codes, int step, int token, int f) {
  const int piece = (step % 2 * 4 + f) ^ token % 8;
  return reinterpret_cast<uint4*>(codes + step / 2 * LayerEndCut::kCodeBytes + token * 128 +
                                  16 * piece);
}

// Lane l of a warp has four codes, of columns 4 l .. 4 l + 3 of two K steps. Sends those of steps
// before `end` to all blocks.
__device__ __forceinline__ void send_codes(uint32_t word, int first_step, int end, int token,
                                           uint8_t* codes, Inbox& inbox) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int f = lane % 4;
  const int from = lane % 8 / 4 * 16 + f;
  const uint4 piece = {__shfl_sync(kAllLanes, word, from), __shfl_sync(kAllLanes, word, from + 4),
                       __shfl_sync(kAllLanes, word, from + 8),
                       __shfl_sync(kAllLanes, word, from + 12)};
  const int step = first_step + lane % 8 / 4;
  if (step >= end) return;
  uint4* const at = code_piece(codes, step, token, f);
  inbox.send(lane / 8, at, piece);
  inbox.send(lane / 8 + 4, at, piece);
}

// A token's values as a warp has them: lane l the fours of columns l, l + 32, ...
struct TokenValues {
  float4 x[kQuads];

  __device__ __forceinline__ void load(const float* row, int cols) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      x[j] = four<true>(row, 4 * (static_cast<int>(threadIdx.x) % 32 + 32 * j), cols);
    }
  }
};

// A warp quantises a token, and sends codes and scale to all blocks.
__device__ __forceinline__ void send_token(const TokenValues& values, const Input& in, int token,
                                           float first_scale, float up_scale, uint8_t* codes,
                                           TokenScale* scales, Inbox& inbox) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool has_gain = in.gain != nullptr;
  float4 z[kQuads];
  float p[8] = {};  // partial sums of canonical_sum: 4 lane .. 4 lane + 3, and those 128 further on
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    z[j] = values.x[j];
    if (has_gain) {
      float* const q = p + 4 * (j % 2);
      q[0] = fmaf(z[j].x, z[j].x, q[0]);
      q[1] = fmaf(z[j].y, z[j].y, q[1]);
      q[2] = fmaf(z[j].z, z[j].z, q[2]);
      q[3] = fmaf(z[j].w, z[j].w, q[3]);
      z[j] = product(z[j], four<true>(in.gain, 4 * (lane + 32 * j), in.cols));
    }
    largest = max(largest, magnitude(z[j]));
  }
  const RowFactors factors = row_factors(max_warp(largest), has_gain);
  if (!factors.finite && lane == 0) set_fault(in.fault, in.layer + 1);
  int sum = 0;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    if (128 * j >= in.cols) break;
    const uint32_t word = factors.zero ? 0 : quantise(z[j], factors.s);
    sum = __dp4a(static_cast<int>(word), 0x01010101, sum);
    send_codes(word, 2 * j, 2 * j + 2, token, codes, inbox);
  }
  sum = sum_warp(sum);
  const float r = has_gain ? rms_factor(fold_fours(p), in.cols, in.eps) : 1.0f;
  if (lane < kClusterBlocks) {
    inbox.send(lane, reinterpret_cast<int4*>(&scales[token]),
               make_int4(sum, __float_as_int(factors.s), __float_as_int(r),
                         __float_as_int((first_scale / factors.s) * r)));
    inbox.send(lane, &scales[token].up_factor, (up_scale / factors.s) * r);
  }
}

// By one thread: what comes into the block.
__device__ __forceinline__ void open_inboxes(const LayerEnd& layer, const LayerEndCut& cut,
                                             const EndShare& share, EndShared& shared) {
  // Codes come in whole blocks of two K steps.
  const auto code_bytes = [](int steps) { return divide_up(steps, 2) * LayerEndCut::kCodeBytes; };
  shared.out_codes.init(code_bytes(cut.out_steps) + kTokens * TokenScale::kSentBytes);
  shared.up_codes.init(code_bytes(cut.up_steps) + kTokens * TokenScale::kSentBytes);
  shared.down_codes.init(code_bytes(cut.down_steps) + kTokens * kClusterBlocks * 4);
  shared.stream.init(kOwnTokens * cut.dim() * 4);
  shared.maxima.init(kTokens * kClusterBlocks * 4);
  for (uint64_t& arrived : shared.arrived) barrier_init(&arrived, 1);
  barriers_initialised();
  const int out_gain_bytes = layer.out_gain != nullptr ? 4 * layer.q_dim : 0;
  barrier_expect(&shared.arrived[0], 16 * share.tiles * 16 * cut.out_steps + out_gain_bytes);
  barrier_expect(&shared.arrived[1], 2 * 64 * share.steps * 16 * cut.up_steps + 4 * layer.dim);
  barrier_expect(&shared.arrived[2], 16 * share.tiles * 16 * cut.down_steps);
}

// Starts to copy the block's weights, and the gains; all warps call it.
__device__ __forceinline__ void fetch_all(const LayerEnd& layer, const LayerEndCut& cut,
                                          const EndShare& share, uint8_t* memory,
                                          EndShared& shared) {
  const int row = 16 * share.first_tile;
  const int rows = 16 * share.tiles;
  const int pair = 64 * share.first_step;
  const int pairs = 64 * share.steps;
  uint8_t* const gates = memory + cut.up_weights();
  fetch_rows(layer.out, row, rows, cut.out_steps, memory + cut.out_weights(), &shared.arrived[0],
             0);
  fetch_rows(layer.gate, pair, pairs, cut.up_steps, gates, &shared.arrived[1], 1);
  fetch_rows(layer.up, pair, pairs, cut.up_steps, gates + pairs * LayerEndCut::pitch(cut.up_steps),
             &shared.arrived[1], 2);
  fetch_rows(layer.down, row, rows, cut.down_steps, memory + cut.down_weights(), &shared.arrived[2],
             3);
  if (threadIdx.x != 4 * 32) return;
  if (layer.out_gain != nullptr) {
    copy_bulk(memory + cut.out_gain(), layer.out_gain, 4 * layer.q_dim, &shared.arrived[0]);
  }
  copy_bulk(memory + cut.up_gain(), layer.ffn_gain, 4 * layer.dim, &shared.arrived[1]);
}

// Adds the products of a warpgroup's 64 weight rows and all tokens over blocks of two K steps.
// `low`, `high`: rows g and g + 8 of the warp's, from the lane's word of a step on. What lies
// behind the last of an odd number of steps is multiplied by codes of 0.
__device__ __forceinline__ void multiply_blocks(int (&sums)[kSums], const uint8_t* low,
                                                const uint8_t* high, const uint8_t* codes,
                                                int begin, int end) {
  const uint64_t operands = operand<128>(shared_address(codes));
  uint32_t first[2][2][4] = {};
  uint32_t second[2][2][4] = {};
  const auto multiply = [&](int block, uint32_t(&a)[2][2][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unpack_weights(*reinterpret_cast<const uint32_t*>(low + 32 * block + 16 * i),
                     *reinterpret_cast<const uint32_t*>(high + 32 * block + 16 * i), a[i]);
      hold(a[i][0]);
      hold(a[i][1]);
    }
    const uint32_t at = static_cast<uint32_t>(block * LayerEndCut::kCodeBytes);
    start_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply_registers(sums, a[i / 2][i % 2], operand_at(operands, at + 32 * i), true);
    }
    end_products();
  };
  const auto hold_block = [](uint32_t(&a)[2][2][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) hold(a[i / 2][i % 2]);
  };
  hold(sums);
  if ((end - begin) % 2 != 0) multiply(begin++, second);
#pragma unroll 1
  for (int block = begin; block < end; block += 2) {
    multiply(block, first);
    wait_for_products<1>();  // the rows of the block before stay in their registers until then
    hold_block(second);
    multiply(block + 1, second);
    wait_for_products<1>();
    hold_block(first);
  }
  wait_for_products<0>();
  hold_block(second);
  hold(sums);
}

// The block's rows of the residual stream, by attn_out or ffn_down. Returns a lane's four sums of
// tile warp / kTokenTiles: rows g and g + 8 of tokens 2 t and 2 t + 1 of tile warp % kTokenTiles of
// them; for the warps that have such a tile.
__device__ __forceinline__ int4 multiply_rows(const LayerEndCut& cut, const EndShare& share,
                                              const uint8_t* weights, int steps, uint8_t* memory) {
  using TileSums = int4[kTokenTiles][32];
  static_assert(sizeof(TileSums) == LayerEndCut::kSumBytes);
  auto* const all_sums = reinterpret_cast<TileSums*>(memory + cut.sums());
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int blocks = divide_up(steps, 2);
  const int row_groups = divide_up(share.tiles, 4);
  const int parts = kGroups / row_groups;
  const int part = warp / 4 / row_groups;
  if (part < parts) {
    const int tile = warp / 4 % row_groups * 4 + warp % 4;
    const int last_row = 16 * share.tiles - 1;
    const uint8_t* of_lane = weights + lane % 4 * 4;
    const int row = 16 * tile + lane / 4;
    int sums[kSums] = {};
    multiply_blocks(sums, of_lane + min(row, last_row) * LayerEndCut::pitch(steps),
                    of_lane + min(row + 8, last_row) * LayerEndCut::pitch(steps),
                    memory + cut.codes(), part * blocks / parts, (part + 1) * blocks / parts);
    if (tile < share.tiles) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        all_sums[part * share.tiles + tile][n][lane] =
            make_int4(sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], sums[4 * n + 3]);
      }
    }
  }
  __syncthreads();
  int4 sum = make_int4(0, 0, 0, 0);
  const int tile = warp / kTokenTiles;
  if (tile >= share.tiles) return sum;
  for (int from = 0; from < parts; ++from) {
    const int4 s = all_sums[from * share.tiles + tile][warp % kTokenTiles][lane];
    sum = make_int4(sum.x + s.x, sum.y + s.y, sum.z + s.z, sum.w + s.w);
  }
  return sum;
}

// What a lane has of multiply_rows().
struct LaneResults {
  bool exist;
  int row, token;  // of the first; the others are a token, eight rows, both further on

  __device__ explicit LaneResults(const EndShare& share) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    exist = warp / kTokenTiles < share.tiles;
    row = 16 * (share.first_tile + warp / kTokenTiles) + lane / 4;
    token = 8 * (warp % kTokenTiles) + 2 * (lane % 4);
  }
};

__device__ __forceinline__ float scale_of(const WeightMatrix& w, int row) {
  return w.scale[w.scale_per_row ? row : 0];
}

// attn_out by the block's rows. The new values of the residual stream go to the blocks that have
// the tokens; `residual` [4] in and out.
__device__ __forceinline__ void end_attention(const LayerEnd& layer, const LayerEndCut& cut,
                                              const EndShare& share, const LaneResults& results,
                                              float (&residual)[4], uint8_t* memory,
                                              EndShared& shared) {
  const int4 sum = multiply_rows(cut, share, memory + cut.out_weights(), cut.out_steps, memory);
  if (!results.exist) return;
  const int sums[4] = {sum.x, sum.y, sum.z, sum.w};
  float* const stream = reinterpret_cast<float*>(memory + cut.stream());
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = results.token + i % 2;
    const int row = results.row + i / 2 * 8;
    const TokenScale& scale = shared.out[token];
    const float factor =
        layer.out.scale_per_row ? (layer.out.scale[row] / scale.s) * scale.r : scale.factor;
    residual[i] += static_cast<float>(unscaled(sums[i]) - scale.sum) * factor;
    finite = finite && isfinite(residual[i]);
    shared.stream.send(token / kOwnTokens, stream + token % kOwnTokens * cut.dim() + row,
                       residual[i]);
  }
  if (!finite) set_fault(layer.fault, layer.layer + 1);
}

// ffn_up by the block's pairs, which are its columns of ffn_down: into `gated_rows` [token][pitch].
// Warp w has pairs 8 w .. 8 w + 7: their gates are its first eight rows.
__device__ __forceinline__ void make_gated(const LayerEnd& layer, const LayerEndCut& cut,
                                           const EndShare& share, const uint8_t* memory,
                                           const EndShared& shared, float* gated_rows, int pitch) {
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= 8 * share.steps) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = 8 * warp + lane / 4;
  const int weight_pitch = LayerEndCut::pitch(cut.up_steps);
  const uint8_t* gates = memory + cut.up_weights() + column * weight_pitch + lane % 4 * 4;
  int sums[kSums] = {};
  multiply_blocks(sums, gates, gates + 64 * share.steps * weight_pitch, memory + cut.codes(), 0,
                  divide_up(cut.up_steps, 2));
  const bool scales_differ = layer.gate.scale_per_row || layer.up.scale_per_row;
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int token = 8 * n + 2 * (lane % 4) + b;
      const TokenScale& scale = shared.up[token];
      float2 factors = make_float2(scale.factor, scale.up_factor);
      if (scales_differ) {
        const int pair = 64 * share.first_step + column;
        factors = make_float2((scale_of(layer.gate, pair) / scale.s) * scale.r,
                              (scale_of(layer.up, pair) / scale.s) * scale.r);
      }
      gated_rows[token * pitch + column] =
          gated(layer.act, static_cast<float>(unscaled(sums[4 * n + b]) - scale.sum) * factors.x,
                static_cast<float>(unscaled(sums[4 * n + 2 + b]) - scale.sum) * factors.y);
    }
  }
}

// The block's columns of ffn_down in codes, to all blocks; each warp those of its token, `row`.
__device__ __forceinline__ void send_gated(const LayerEnd& layer, const LayerEndCut& cut,
                                           const EndShare& share, float down_scale,
                                           const float* row, uint8_t* memory, EndShared& shared) {
  static_assert(kEndWarps == kTokens);
  const int token = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float4 z[kGatedQuads];
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kGatedQuads; ++j) {
    z[j] = four<true>(row, 4 * (lane + 32 * j), 64 * share.steps);
    largest = max(largest, magnitude(z[j]));
  }
  largest = max_warp(largest);
  if (lane < kClusterBlocks) {
    shared.maxima.send(lane, &shared.max[token][share.rank], largest);
  }
  shared.maxima.wait();
  const RowFactors factors =
      row_factors(max_warp(shared.max[token][lane % kClusterBlocks]), /*has_gain=*/false);
  if (lane == 0) {
    shared.down_s[token] = factors.s;
    shared.down_factors[token] = down_scale / factors.s;
    if (!factors.finite) set_fault(layer.fault, layer.layer + 1);
  }
  // The last block of two K steps may have one.
  const int end =
      share.first_step + share.steps + (share.rank == kClusterBlocks - 1 ? cut.down_steps % 2 : 0);
  int sum = 0;
#pragma unroll
  for (int j = 0; j < kGatedQuads; ++j) {
    const uint32_t word = factors.zero ? 0 : quantise(z[j], factors.s);
    sum = __dp4a(static_cast<int>(word), 0x01010101, sum);
    send_codes(word, share.first_step + 2 * j, end, token, memory + cut.codes(), shared.down_codes);
  }
  sum = sum_warp(sum);
  if (lane < kClusterBlocks) {
    shared.down_codes.send(lane, &shared.sum[token][share.rank], sum);
  }
}

__device__ __forceinline__ int sum_of(int4 v) { return (v.x + v.y) + (v.z + v.w); }

// ffn_down by the block's rows, into memory.
__device__ __forceinline__ void end_layer(const LayerEnd& layer, const LayerEndCut& cut,
                                          const EndShare& share, const LaneResults& results,
                                          const float (&residual)[4], int first_token,
                                          uint8_t* memory, EndShared& shared) {
  const int4 sum = multiply_rows(cut, share, memory + cut.down_weights(), cut.down_steps, memory);
  if (!results.exist) return;
  const int sums[4] = {sum.x, sum.y, sum.z, sum.w};
  bool finite = true;
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const int token = results.token + b;
    if (first_token + token >= layer.rows) continue;
    const int4* of_blocks = reinterpret_cast<const int4*>(shared.sum[token]);
    const int of_codes = sum_of(of_blocks[0]) + sum_of(of_blocks[1]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = results.row + 8 * h;
      const float factor = layer.down.scale_per_row ? layer.down.scale[row] / shared.down_s[token]
                                                    : shared.down_factors[token];
      const float value =
          residual[2 * h + b] + static_cast<float>(unscaled(sums[2 * h + b]) - of_codes) * factor;
      finite = finite && isfinite(value);
      layer.x[static_cast<size_t>(first_token + token) * static_cast<size_t>(layer.dim) +
              static_cast<size_t>(row)] = value;
    }
  }
  if (!finite) set_fault(layer.fault, layer.layer + 1);
}

__global__ void __launch_bounds__(kEndThreads, 1) layer_end_kernel(LayerEnd layer) {
  extern __shared__ uint8_t shared_memory[];
  __shared__ EndShared shared;
  let_next_start();
  uint8_t* const memory = shared_memory + (1024 - (shared_address(shared_memory) & 1023)) % 1024;
  const LayerEndCut cut(layer.q_dim, layer.dim, layer.ffn);
  const EndShare share(cut);
  const int t = static_cast<int>(threadIdx.x);
  const int warp = t / 32;
  const int first_token = static_cast<int>(blockIdx.x) / kClusterBlocks * kTokens;
  if (t == 0) open_inboxes(layer, cut, share, shared);
  cluster_arrive();
  __syncthreads();
  fetch_all(layer, cut, share, memory, shared);
  const FirstScales scales(layer);
  const LaneResults results(share);
  cluster_wait();  // the inboxes of all blocks are open

  wait_for_previous();
  // The last token stands in for those that do not exist.
  const int own_token = share.rank * kOwnTokens + warp;
  const bool has_token = warp < kOwnTokens;
  TokenValues values;
  if (has_token) {
    const int row = min(first_token + own_token, layer.rows - 1);
    values.load(layer.y + static_cast<size_t>(row) * static_cast<size_t>(layer.q_dim), layer.q_dim);
  }
  float residual[4] = {};
  if (results.exist) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = min(first_token + results.token + i % 2, layer.rows - 1);
      residual[i] = layer.x[static_cast<size_t>(row) * static_cast<size_t>(layer.dim) +
                            static_cast<size_t>(results.row + i / 2 * 8)];
    }
  }
  if (has_token) {
    Input in{nullptr, nullptr, layer.out_eps, layer.q_dim, layer.fault, layer.layer};
    if (layer.out_gain != nullptr) {
      in.gain = reinterpret_cast<const float*>(memory + cut.out_gain());
      barrier_wait(&shared.arrived[0], 0);
    }
    send_token(values, in, own_token, scales.out, 0.0f, memory + cut.codes(), shared.out,
               shared.out_codes);
  }
  barrier_wait(&shared.arrived[0], 0);
  shared.out_codes.wait();
  writes_visible_to_copies();
  end_attention(layer, cut, share, results, residual, memory, shared);
  __syncthreads();  // the sums have been read

  barrier_wait(&shared.arrived[1], 0);
  if (has_token) {
    shared.stream.wait();
    values.load(reinterpret_cast<const float*>(memory + cut.stream()) + warp * cut.dim(),
                layer.dim);
    const Input in{nullptr,       reinterpret_cast<const float*>(memory + cut.up_gain()),
                   layer.ffn_eps, layer.dim,
                   layer.fault,   layer.layer};
    send_token(values, in, own_token, scales.gate, scales.up, memory + cut.codes(), shared.up,
               shared.up_codes);
  }
  shared.up_codes.wait();
  writes_visible_to_copies();
  float* const gated_rows = reinterpret_cast<float*>(memory + cut.sums());
  const int pitch = cut.gated_pitch();
  make_gated(layer, cut, share, memory, shared, gated_rows, pitch);
  __syncthreads();
  send_gated(layer, cut, share, scales.down, gated_rows + warp * pitch, memory, shared);
  __syncthreads();  // the rows have been read

  barrier_wait(&shared.arrived[2], 0);
  shared.down_codes.wait();
  writes_visible_to_copies();
  end_layer(layer, cut, share, results, residual, first_token, memory, shared);
}

}  // namespace

bool layer_end(const ProjectArgs& out, const FfnUpArgs& up, const ProjectArgs& down,
               cudaStream_t stream) {
  if (out.activations != Activations::kInt8Row || up.up_gain != nullptr) return false;
  if (!is_aligned(out.y) || !is_aligned(out.gain) || !is_aligned(up.gain)) return false;
  const LayerEndSize size{out.rows, out.w.cols, out.w.rows, up.gate.rows, down.gain != nullptr};
  const std::optional<LayerEndPlan> plan = pick_layer_end(size, current_device());
  if (!plan) return false;
  const LayerEnd layer{out.w,      up.gate,      up.up,    down.w,    out.y,    out.gain,
                       out.eps,    up.gain,      up.eps,   up.act,    out.x,    out.w.cols,
                       out.w.rows, up.gate.rows, out.rows, out.fault, out.layer};
  launch_clusters(layer_end_kernel, kClusterBlocks, plan->launch, stream, layer);
  return true;
}

}  // namespace edgellm::cuda
