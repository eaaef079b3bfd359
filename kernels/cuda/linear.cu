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
  bool prequantised;
  Workspace workspace;
};

__global__ void quantise_kernel(Input input) {
  __shared__ Reduction scratch;
  extern __shared__ int8_t codes[];
  const int row = static_cast<int>(blockIdx.x);
  const size_t stride = static_cast<size_t>(padded_columns(input.cols));
  const RowScale scale =
      quantise_row(input.x + static_cast<size_t>(row) * static_cast<size_t>(input.cols), input.gain,
                   input.eps, input.cols, codes, scratch, input.fault, input.layer);
  const uint4* from = reinterpret_cast<const uint4*>(codes);
  uint4* to = reinterpret_cast<uint4*>(input.workspace.codes + static_cast<size_t>(row) * stride);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(stride / 16); i += kThreads) {
    to[i] = from[i];
  }
  if (threadIdx.x == 0) {
    input.workspace.row_s[row] = scale.s;
    input.workspace.row_r[row] = scale.r;
    input.workspace.row_sum[row] = scale.sum;
  }
}

// The quantised activation rows of a block. Ends with a barrier.
template <int kTokens>
__device__ void fetch_rows(const Input& input, int first, int8_t* codes, RowScale (&scale)[kTokens],
                           Reduction& scratch) {
  const int stride = padded_columns(input.cols);
  for (int t = 0; t < kTokens; ++t) {
    const int row = min(first + t, input.rows - 1);
    if (!input.prequantised) {
      scale[t] = quantise_row(input.x + static_cast<size_t>(row) * static_cast<size_t>(input.cols),
                              input.gain, input.eps, input.cols, codes + t * stride, scratch,
                              input.fault, input.layer);
      continue;
    }
    const uint4* from = reinterpret_cast<const uint4*>(
        input.workspace.codes + static_cast<size_t>(row) * static_cast<size_t>(stride));
    uint4* to = reinterpret_cast<uint4*>(codes + t * stride);
    for (int i = static_cast<int>(threadIdx.x); i < stride / 16; i += kThreads) to[i] = from[i];
    scale[t].s = input.workspace.row_s[row];
    scale[t].r = input.workspace.row_r[row];
    scale[t].sum = input.workspace.row_sum[row];
  }
  __syncthreads();
}

// results[t][slot] for the block's kThreads / kLanes output rows; row_of(slot) < 0 where there is
// none. No barrier at the end.
template <int kLanes, int kTokens, class RowOf>
__device__ void multiply(const TernaryMatrix& w, RowOf row_of, const int8_t* codes,
                         const RowScale (&scale)[kTokens],
                         float (&results)[kTokens][kThreads / kLanes]) {
  const int slot = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int row = row_of(slot);
  const int chunks = (w.cols + 63) / 64;
  int sums[kTokens] = {};
  if (row >= 0) {
    dot_chunks<kTokens>(w.codes + static_cast<size_t>(row) * static_cast<size_t>(chunks) * 16,
                        chunks, lane, kLanes, codes, 64 * chunks, sums);
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    int sum = sums[t];
    for (int width = kLanes / 2; width >= 1; width /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, width);
    }
    if (lane == 0 && row >= 0) {
      const float m = w.scale[w.n_scales == 1 ? 0 : row];
      results[t][slot] = static_cast<float>(scale[t].sum - sum) * ((m / scale[t].s) * scale[t].r);
    }
  }
}

template <int kLanes, int kTokens>
__global__ void project_kernel(Input input, TernaryMatrix w, float* x) {
  constexpr int kSlots = kThreads / kLanes;
  extern __shared__ int8_t codes[];
  __shared__ Reduction scratch;
  __shared__ float results[kTokens][kSlots];
  RowScale scale[kTokens];
  const int first_row = static_cast<int>(blockIdx.x) * kSlots;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  fetch_rows<kTokens>(input, first_token, codes, scale, scratch);
  multiply<kLanes, kTokens>(
      w, [&](int slot) { return first_row + slot < w.rows ? first_row + slot : -1; }, codes, scale,
      results);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kSlots; i += kThreads) {
    const int token = first_token + i / kSlots;
    const int row = first_row + i % kSlots;
    if (token >= input.rows || row >= w.rows) continue;
    float& residual =
        x[static_cast<size_t>(token) * static_cast<size_t>(w.rows) + static_cast<size_t>(row)];
    const float sum = residual + results[i / kSlots][i % kSlots];
    residual = sum;
    if (!isfinite(sum)) set_fault(input.fault, input.layer + 1);
  }
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
  fetch_rows<kTokens>(input, first_token, codes, scale, scratch);
  const auto row_of = [&](int slot) {
    return first_row + slot < gate.rows ? first_row + slot : -1;
  };
  multiply<kLanes, kTokens>(gate, row_of, codes, scale, gates);
  multiply<kLanes, kTokens>(up, row_of, codes, scale, ups);
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
  const TernaryMatrix& w = which == 0 ? q : which == 1 ? k : v;
  const int first_pair = block * kPairs;
  const auto row_of = [&](int slot) {
    const int pair = first_pair + slot % kPairs;
    if (pair >= w.rows / 2) return -1;
    return pair / half * ending.kv.head_dim + pair % half + (slot < kPairs ? 0 : half);
  };
  fetch_rows<kTokens>(input, first_token, codes, scale, scratch);
  multiply<kLanes, kTokens>(w, row_of, codes, scale, results);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kPairs; i += kThreads) {
    const int token = first_token + i / kPairs;
    const int pair = first_pair + i % kPairs;
    if (token >= input.rows || pair >= w.rows / 2) continue;
    const int head = pair / half;
    const int d = pair % half;
    const int position = ending.places.position[token];
    float low = results[i / kPairs][i % kPairs];
    float high = results[i / kPairs][i % kPairs + kPairs];
    if (which != 2) {
      const float cosine =
          ending.rope_cos[static_cast<size_t>(position) * static_cast<size_t>(half) +
                          static_cast<size_t>(d)];
      const float sine = ending.rope_sin[static_cast<size_t>(position) * static_cast<size_t>(half) +
                                         static_cast<size_t>(d)];
      const float rotated = low * cosine - high * sine;
      high = high * cosine + low * sine;
      low = rotated;
    }
    if (which == 0) {
      float* out = ending.q_out + static_cast<size_t>(token) * static_cast<size_t>(q.rows) +
                   static_cast<size_t>(head * ending.kv.head_dim + d);
      out[0] = low;
      out[half] = high;
      continue;
    }
    const size_t tile = ending.kv.tile_offset(ending.places.sequence[token], position, head);
    const size_t row =
        tile + static_cast<size_t>(position % kAttentionChunk * ending.kv.head_dim + d);
    void* pool = which == 1 ? ending.kv.k : ending.kv.v;
    store_kv(pool, ending.kv.type, row, low);
    store_kv(pool, ending.kv.type, row + static_cast<size_t>(half), high);
  }
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
  Input input{x, gain, eps, cols, rows, fault, layer, rows > kMaxInlineRows, workspace};
  if (input.prequantised) {
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
