// qkv, attn_out, ffn_up and ffn_down: quantise, ternary product, and each op's own ending.
//
// A block takes a few output rows and kTokens activation rows. It first quantises the activation
// rows into shared memory (every block for itself: cheaper than another launch and a round trip),
// or fetches them where a launch before has done so for many rows. Then groups of lanes share an
// output row along its columns, and the ending runs on the finished results in shared memory.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"

namespace edgellm::cuda {
namespace {

struct Input {
  const float* x;     // [rows, cols]
  const float* gain;  // [cols] or null
  float eps;
  int cols;
  int rows;
  int32_t* fault;
  int layer;
  // Quantised rows that quantise_kernel has made; null where each block quantises for itself.
  int8_t* codes;     // [rows, padded_columns(cols)]
  float* row_s;      // [rows]
  float* row_r;      // [rows]
  int32_t* row_sum;  // [rows]
};

__global__ void quantise_kernel(Input input) {
  __shared__ Reduction scratch;
  extern __shared__ int8_t codes[];
  const int row = static_cast<int>(blockIdx.x);
  const size_t stride = static_cast<size_t>(padded_columns(input.cols));
  let_next_start();
  wait_for_previous();
  const RowScale scale =
      quantise_row(input.x + static_cast<size_t>(row) * static_cast<size_t>(input.cols), input.gain,
                   input.eps, input.cols, codes, scratch, input.fault, input.layer);
  const uint4* from = reinterpret_cast<const uint4*>(codes);
  uint4* to = reinterpret_cast<uint4*>(input.codes + static_cast<size_t>(row) * stride);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(stride / 16); i += kThreads) {
    to[i] = from[i];
  }
  if (threadIdx.x == 0) {
    input.row_s[row] = scale.s;
    input.row_r[row] = scale.r;
    input.row_sum[row] = scale.sum;
  }
}

// The quantised activation rows of a block. Ends with a barrier.
template <int kTokens>
__device__ void fetch_rows(const Input& input, int first, int8_t* codes, RowScale (&scale)[kTokens],
                           Reduction& scratch) {
  const int stride = padded_columns(input.cols);
  for (int t = 0; t < kTokens; ++t) {
    const int row = min(first + t, input.rows - 1);
    if (input.codes == nullptr) {
      scale[t] = quantise_row(input.x + static_cast<size_t>(row) * static_cast<size_t>(input.cols),
                              input.gain, input.eps, input.cols, codes + t * stride, scratch,
                              input.fault, input.layer);
      continue;
    }
    const uint4* from = reinterpret_cast<const uint4*>(
        input.codes + static_cast<size_t>(row) * static_cast<size_t>(stride));
    uint4* to = reinterpret_cast<uint4*>(codes + t * stride);
    for (int i = static_cast<int>(threadIdx.x); i < stride / 16; i += kThreads) to[i] = from[i];
    scale[t].s = input.row_s[row];
    scale[t].r = input.row_r[row];
    scale[t].sum = input.row_sum[row];
  }
  __syncthreads();
}

// A lane's share of one output row: chunks of 64 columns lane, lane + kLanes, ... The first
// kPrefetched of them are fetched before the activations are there.
template <int kLanes>
struct WeightRow {
  static constexpr int kPrefetched = 8;

  const uint4* codes = nullptr;  // null where the slot has no row
  int chunks = 0;
  float scale = 0.0f;
  uint4 first[kPrefetched];

  __device__ WeightRow(const TernaryMatrix& w, int row) {
    if (row < 0) return;
    chunks = (w.cols + 63) / 64;
    codes = reinterpret_cast<const uint4*>(w.codes) +
            static_cast<size_t>(row) * static_cast<size_t>(chunks);
    scale = w.scale[w.n_scales == 1 ? 0 : row];
#pragma unroll
    for (int i = 0; i < kPrefetched; ++i) {
      const int c = lane() + i * kLanes;
      if (c < chunks) first[i] = codes[c];
    }
  }

  __device__ static int slot() { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }

  // results[t][slot] of this row for the activation rows; written by lane 0.
  template <int kTokens>
  __device__ void multiply(const int8_t* x, const RowScale (&row_scale)[kTokens],
                           float (&results)[kTokens][kThreads / kLanes]) const {
    TernaryDot<kTokens> dot;
#pragma unroll
    for (int i = 0; i < kPrefetched; ++i) {
      const int c = lane() + i * kLanes;
      if (c < chunks) dot.add(first[i], x, c, chunks);
    }
    for (int c = lane() + kPrefetched * kLanes; c < chunks; c += kLanes) {
      dot.add(codes[c], x, c, chunks);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      int sum = dot.finish(t);
      for (int width = kLanes / 2; width >= 1; width /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, width);
      }
      if (lane() == 0 && codes != nullptr) {
        results[t][slot()] = static_cast<float>(row_scale[t].sum - sum) *
                             ((scale / row_scale[t].s) * row_scale[t].r);
      }
    }
  }
};

template <int kLanes, int kTokens>
__global__ void project_kernel(Input input, TernaryMatrix w, float* x) {
  constexpr int kSlots = kThreads / kLanes;
  extern __shared__ int8_t codes[];
  __shared__ Reduction scratch;
  __shared__ float results[kTokens][kSlots];
  RowScale scale[kTokens];
  const int first_row = static_cast<int>(blockIdx.x) * kSlots;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  let_next_start();
  const int own_row = first_row + WeightRow<kLanes>::slot();
  const WeightRow<kLanes> weights(w, own_row < w.rows ? own_row : -1);
  wait_for_previous();
  // A thread finishes at most one result; its residual is on the way while the product is made.
  static_assert(kTokens * kSlots <= kThreads);
  const int t = static_cast<int>(threadIdx.x);
  const int token = first_token + t / kSlots;
  const int row = first_row + t % kSlots;
  const bool finishes = t < kTokens * kSlots && token < input.rows && row < w.rows;
  float* place =
      x + static_cast<size_t>(token) * static_cast<size_t>(w.rows) + static_cast<size_t>(row);
  const float residual = finishes ? *place : 0.0f;
  fetch_rows<kTokens>(input, first_token, codes, scale, scratch);
  weights.multiply(codes, scale, results);
  __syncthreads();
  if (!finishes) return;
  const float sum = residual + results[t / kSlots][t % kSlots];
  *place = sum;
  if (!isfinite(sum)) set_fault(input.fault, input.layer + 1);
}

template <int kLanes, int kTokens>
__global__ void ffn_up_kernel(Input input, TernaryMatrix gate, TernaryMatrix up, GateActivation act,
                              float* u) {
  constexpr int kSlots = kThreads / kLanes;
  extern __shared__ int8_t codes[];
  __shared__ Reduction scratch;
  __shared__ float gates[kTokens][kSlots];
  __shared__ float ups[kTokens][kSlots];
  RowScale scale[kTokens];
  const int first_row = static_cast<int>(blockIdx.x) * kSlots;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  let_next_start();
  const int own_row = first_row + WeightRow<kLanes>::slot();
  const WeightRow<kLanes> gate_weights(gate, own_row < gate.rows ? own_row : -1);
  const WeightRow<kLanes> up_weights(up, own_row < gate.rows ? own_row : -1);
  wait_for_previous();
  fetch_rows<kTokens>(input, first_token, codes, scale, scratch);
  gate_weights.multiply(codes, scale, gates);
  up_weights.multiply(codes, scale, ups);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kSlots; i += kThreads) {
    const int token = first_token + i / kSlots;
    const int row = first_row + i % kSlots;
    if (token >= input.rows || row >= gate.rows) continue;
    const float g = gates[i / kSlots][i % kSlots];
    const float v = ups[i / kSlots][i % kSlots];
    float activated;
    if (act == GateActivation::kRelu2) {
      const float t = g > 0.0f ? g : 0.0f;
      activated = (t * t) * v;
    } else {
      activated = (g / (1.0f + canonical_exp(-g))) * v;
    }
    u[static_cast<size_t>(token) * static_cast<size_t>(gate.rows) + static_cast<size_t>(row)] =
        activated;
  }
}

struct QkvEnding {
  const float* rope_cos;
  const float* rope_sin;
  RowPlaces places;
  float* q_out;
  KvCache kv;
  int heads;
};

__device__ void store_kv(void* pool, KvType type, size_t index, float value) {
  if (type == KvType::kF16) {
    static_cast<uint16_t*>(pool)[index] = to_half(value);
  } else {
    static_cast<float*>(pool)[index] = value;
  }
}

// Pairs (i, i + head_dim / 2) of a head go to slots s and s + kSlots / 2 of one block, so that the
// block can rotate them. Pairs are numbered over the heads of q, then k, then v.
template <int kLanes, int kTokens>
__global__ void qkv_kernel(Input input, TernaryMatrix q, TernaryMatrix k, TernaryMatrix v,
                           QkvEnding ending) {
  constexpr int kSlots = kThreads / kLanes;
  constexpr int kPairs = kSlots / 2;
  extern __shared__ int8_t codes[];
  __shared__ Reduction scratch;
  __shared__ float results[kTokens][kSlots];
  RowScale scale[kTokens];
  const int half = ending.kv.head_dim / 2;
  const int q_pairs = q.rows / 2;
  const int k_pairs = k.rows / 2;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  // Blocks do not straddle the matrices.
  const int q_blocks = (q_pairs + kPairs - 1) / kPairs;
  const int k_blocks = (k_pairs + kPairs - 1) / kPairs;
  int block = static_cast<int>(blockIdx.x);
  const int which = block < q_blocks ? 0 : block < q_blocks + k_blocks ? 1 : 2;
  block -= which == 0 ? 0 : which == 1 ? q_blocks : q_blocks + k_blocks;
  // Selected field by field: a reference would put the three arguments into local memory.
  const TernaryMatrix w{which == 0   ? q.codes
                        : which == 1 ? k.codes
                                     : v.codes,
                        which == 0   ? q.scale
                        : which == 1 ? k.scale
                                     : v.scale,
                        which == 0   ? q.n_scales
                        : which == 1 ? k.n_scales
                                     : v.n_scales,
                        which == 0   ? q.rows
                        : which == 1 ? k.rows
                                     : v.rows,
                        input.cols};
  const int first_pair = block * kPairs;
  const int own_slot = WeightRow<kLanes>::slot();
  const int own_pair = first_pair + own_slot % kPairs;
  const int own_row =
      own_pair / half * ending.kv.head_dim + own_pair % half + (own_slot < kPairs ? 0 : half);
  let_next_start();
  const WeightRow<kLanes> weights(w, own_pair < w.rows / 2 ? own_row : -1);
  wait_for_previous();
  // A thread finishes at most one pair; where it goes and its angle are looked up on the way.
  static_assert(kTokens * kPairs <= kThreads);
  const int t = static_cast<int>(threadIdx.x);
  const int token = first_token + t / kPairs;
  const int pair = first_pair + t % kPairs;
  const bool finishes = t < kTokens * kPairs && token < input.rows && pair < w.rows / 2;
  const int head = pair / half;
  const int d = pair % half;
  int position = 0;
  float cosine = 1.0f;
  float sine = 0.0f;
  size_t tile = 0;
  if (finishes) {
    position = ending.places.position[token];
    if (which != 2) {
      const size_t angle =
          static_cast<size_t>(position) * static_cast<size_t>(half) + static_cast<size_t>(d);
      cosine = ending.rope_cos[angle];
      sine = ending.rope_sin[angle];
    }
    if (which != 0) {
      tile = ending.kv.tile_offset(ending.places.sequence[token], position, head);
    }
  }
  fetch_rows<kTokens>(input, first_token, codes, scale, scratch);
  weights.multiply(codes, scale, results);
  __syncthreads();
  if (!finishes) return;
  float low = results[t / kPairs][t % kPairs];
  float high = results[t / kPairs][t % kPairs + kPairs];
  if (which != 2) {
    const float rotated = low * cosine - high * sine;
    high = high * cosine + low * sine;
    low = rotated;
  }
  const int dim = ending.kv.head_dim;
  if (which == 0) {
    float* out = ending.q_out + static_cast<size_t>(token) * static_cast<size_t>(q.rows) +
                 static_cast<size_t>(head * dim + d);
    out[0] = low;
    out[half] = high;
    return;
  }
  void* pool = which == 1 ? ending.kv.k : ending.kv.v;
  const int low_at = which == 1 ? key_index(position, d, dim) : value_index(position, d, dim);
  const int high_at =
      which == 1 ? key_index(position, d + half, dim) : value_index(position, d + half, dim);
  store_kv(pool, ending.kv.type, tile + static_cast<size_t>(low_at), low);
  store_kv(pool, ending.kv.type, tile + static_cast<size_t>(high_at), high);
}

// How a product is cut: lanes per output row and activation rows per block.
struct Shape {
  int lanes;
  int tokens;
  int slots() const { return kThreads / lanes; }
};

Shape shape_for(const Input& input) {
  const int chunks = (input.cols + 63) / 64;
  const int tokens = input.rows == 1 ? 1 : 4;
  const bool fits =
      static_cast<size_t>(tokens * padded_columns(input.cols)) <= max_dynamic_shared();
  return {chunks >= 64 ? 16 : 8, fits ? tokens : 1};
}

// Calls launch(kLanes, kTokens) with the shape's numbers as compile-time constants.
template <class Launch>
void dispatch(const Shape& shape, Launch launch) {
  const auto with_tokens = [&](auto lanes) {
    if (shape.tokens == 1) {
      launch(lanes, Constant<1>());
    } else {
      launch(lanes, Constant<4>());
    }
  };
  if (shape.lanes == 8) {
    with_tokens(Constant<8>());
  } else {
    with_tokens(Constant<16>());
  }
}

Input prepare(const float* x, const float* gain, float eps, int cols, int rows, int32_t* fault,
              int layer, const Workspace& workspace, cudaStream_t stream) {
  Input input{x, gain, eps, cols, rows, fault, layer, nullptr, nullptr, nullptr, nullptr};
  if (rows > kMaxInlineRows) {
    input.codes = workspace.codes;
    input.row_s = workspace.row_s;
    input.row_r = workspace.row_r;
    input.row_sum = workspace.row_sum;
    launch(quantise_kernel, dim3(static_cast<unsigned>(rows)), dim3(kThreads),
           static_cast<size_t>(padded_columns(cols)), stream, input);
  }
  return input;
}

dim3 grid_of(const Shape& shape, int blocks, int rows) {
  return dim3(static_cast<unsigned>(blocks),
              static_cast<unsigned>((rows + shape.tokens - 1) / shape.tokens));
}

size_t shared_of(const Shape& shape, int cols) {
  return static_cast<size_t>(shape.tokens * padded_columns(cols));
}

void project(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  const Input input = prepare(args.y, args.gain, args.eps, args.w.cols, args.rows, args.fault,
                              args.layer, workspace, stream);
  const Shape shape = shape_for(input);
  const dim3 grid = grid_of(shape, (args.w.rows + shape.slots() - 1) / shape.slots(), args.rows);
  dispatch(shape, [&](auto lanes, auto tokens) {
    launch(project_kernel<decltype(lanes)::value, decltype(tokens)::value>, grid, dim3(kThreads),
           shared_of(shape, args.w.cols), stream, input, args.w, args.x);
  });
}

}  // namespace

void qkv(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream) {
  const Input input = prepare(args.x, args.gain, args.eps, args.dim, args.rows, args.fault,
                              args.layer, workspace, stream);
  const Shape shape = shape_for(input);
  const int pairs = shape.slots() / 2;
  const auto blocks = [&](const TernaryMatrix& w) { return (w.rows / 2 + pairs - 1) / pairs; };
  const dim3 grid = grid_of(shape, blocks(args.q) + blocks(args.k) + blocks(args.v), args.rows);
  const QkvEnding ending{args.rope_cos, args.rope_sin, args.places,
                         args.q_out,    args.kv,       args.heads};
  dispatch(shape, [&](auto lanes, auto tokens) {
    launch(qkv_kernel<decltype(lanes)::value, decltype(tokens)::value>, grid, dim3(kThreads),
           shared_of(shape, args.dim), stream, input, args.q, args.k, args.v, ending);
  });
}

void attn_out(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  project(args, workspace, stream);
}

void ffn_up(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream) {
  const Input input = prepare(args.x, args.gain, args.eps, args.gate.cols, args.rows, args.fault,
                              args.layer, workspace, stream);
  const Shape shape = shape_for(input);
  const dim3 grid = grid_of(shape, (args.gate.rows + shape.slots() - 1) / shape.slots(), args.rows);
  dispatch(shape, [&](auto lanes, auto tokens) {
    launch(ffn_up_kernel<decltype(lanes)::value, decltype(tokens)::value>, grid, dim3(kThreads),
           shared_of(shape, args.gate.cols), stream, input, args.gate, args.up, args.act, args.u);
  });
}

void ffn_down(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  project(args, workspace, stream);
}

}  // namespace edgellm::cuda
