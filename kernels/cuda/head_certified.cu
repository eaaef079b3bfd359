// build_certified_head and certified_head: the exact arg-max of the head from its int8 codes. The
// first two kernels also serve certified_choose (head_candidates.cu).
#include <iterator>
#include <utility>

#include "kernels/certified_head.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/head_certified.cuh"
#include "kernels/cuda/head_kernels.h"

namespace edgellm::cuda {
namespace {

// ---- Building the certified head -----------------------------------------------------------

// One warp a row: its largest magnitude, then codes and norms.
__device__ void certify_row(const DenseMatrix& w, int row, int lane, int8_t* codes,
                            CertifiedRow* bounds) {
  const size_t base = static_cast<size_t>(row) * static_cast<size_t>(w.cols);
  float amax = 0.0f;
  bool finite = true;
  for (int c = lane; c < w.cols; c += 32) {
    const float value = widen(w.data, w.type, base + static_cast<size_t>(c));
    finite = finite && isfinite(value);
    amax = fmaxf(amax, fabsf(value));
  }
  amax = max_warp(amax);
  finite = __all_sync(kAllLanes, finite);
  const float scale = amax / 127.0f;
  const double per_unit = codes_per_unit(amax);
  const int pitch = static_cast<int>(CertifiedHead::pitch_of(w.cols));
  double errors = 0.0;
  double coded = 0.0;
  double squares = 0.0;
  for (int c = lane; c < pitch; c += 32) {
    const float value =
        c < w.cols && finite ? widen(w.data, w.type, base + static_cast<size_t>(c)) : 0.0f;
    const CodedValue code = code_value(value, per_unit, scale);
    codes[c] = code.code;
    errors += code.error_square;
    coded += code.coded_square;
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  errors = sum_warp(errors);
  coded = sum_warp(coded);
  squares = sum_warp(squares);
  if (lane != 0) return;
  *bounds =
      finite ? certified_row(scale, sqrt(errors), sqrt(coded), sqrt(squares)) : unbounded_row();
}

// Block i: a row a warp.
__global__ void certify_kernel(DenseMatrix w, int8_t* codes, CertifiedRow* bounds) {
  let_next_start();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (row >= w.rows) return;
  certify_row(w, row, static_cast<int>(threadIdx.x) % 32,
              codes + static_cast<size_t>(row) * CertifiedHead::pitch_of(w.cols), bounds + row);
}

// ---- 1: norm and steps ---------------------------------------------------------------------

// Values that a thread keeps between its passes: rows of up to 3072 columns are read once.
constexpr int kKept = 12;

// The canonical norm of a row before the head, by one block: writes it, and leaves its first
// columns in `kept`. Returns the largest magnitude, infinite where a value is not finite.
__device__ __forceinline__ float norm_and_keep(const HeadArgs& args, int row,
                                               float (&kept)[kKept]) {
  __shared__ float partials[kPartials];
  __shared__ float warp_max[kWarps];
  const int t = static_cast<int>(threadIdx.x);
  const int dim = args.w.cols;
  let_next_start();
  float gain[kKept];
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int i = t + j * kThreads;
    gain[j] = i < dim ? args.gain[i] : 0.0f;
  }
  wait_for_previous();

  const float* x = args.x + static_cast<size_t>(args.row_list[row]) * static_cast<size_t>(dim);
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int i = t + j * kThreads;
    kept[j] = i < dim ? x[i] : 0.0f;
  }
  float partial = 0.0f;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    if (t + j * kThreads < dim) partial = fmaf(kept[j], kept[j], partial);
  }
  for (int i = t + kKept * kThreads; i < dim; i += kThreads) partial = fmaf(x[i], x[i], partial);
  partials[t] = partial;
  __syncthreads();
  const float r = rms_factor(fold_partials(partials), dim, args.eps);

  float* normed = args.normed + static_cast<size_t>(row) * static_cast<size_t>(dim);
  float largest = 0.0f;
  bool finite = true;
  const auto keep = [&](int i, float value) {
    normed[i] = value;
    finite = finite && isfinite(value);
    largest = fmaxf(largest, fabsf(value));
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    kept[j] = gain[j] * (kept[j] * r);
    if (t + j * kThreads < dim) keep(t + j * kThreads, kept[j]);
  }
  for (int i = t + kKept * kThreads; i < dim; i += kThreads) keep(i, args.gain[i] * (x[i] * r));
  largest = max_warp(finite ? largest : INFINITY);
  if (t % 32 == 0) warp_max[t / 32] = largest;
  __syncthreads();
  float amax = warp_max[0];
  for (int w = 1; w < kWarps; ++w) amax = fmaxf(amax, warp_max[w]);
  return amax;
}

// Writes the steps of a normed row, or their digits, with what its bounds need.
template <bool kDigits>
__device__ __forceinline__ void write_steps(const HeadArgs& args, const Workspace& workspace,
                                            int row, const float (&kept)[kKept], float amax) {
  __shared__ float2 warp_squares[kWarps];
  const int t = static_cast<int>(threadIdx.x);
  const int dim = args.w.cols;
  const float* normed = args.normed + static_cast<size_t>(row) * static_cast<size_t>(dim);
  const bool finite = isfinite(amax);
  const StepScale scale = step_scale(finite ? amax : 0.0f);
  const int pitch = static_cast<int>(CertifiedHead::pitch_of(dim));
  int16_t* steps = workspace.steps + static_cast<size_t>(row) * static_cast<size_t>(pitch);
  float squares = 0.0f;
  float deltas = 0.0f;
  const auto write = [&](int i, float value) {
    const float scaled = finite ? scale.scaled(value) : 0.0f;
    const float step = step_of(scaled);
    const float delta = scaled - step;
    if constexpr (kDigits) {
      int8_t* digits = reinterpret_cast<int8_t*>(steps);
      digits[i] = high_digit(static_cast<int>(step));
      digits[pitch + i] = static_cast<int8_t>(low_digit(static_cast<int>(step)));
    } else {
      steps[i] = static_cast<int16_t>(step);
    }
    squares = fmaf(scaled, scaled, squares);
    deltas = fmaf(delta, delta, deltas);
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int i = t + j * kThreads;
    if (i < pitch) write(i, i < dim ? kept[j] : 0.0f);
  }
  for (int i = t + kKept * kThreads; i < pitch; i += kThreads) write(i, i < dim ? normed[i] : 0.0f);
  for (int width = 16; width >= 1; width /= 2) {
    squares += __shfl_xor_sync(kAllLanes, squares, width);
    deltas += __shfl_xor_sync(kAllLanes, deltas, width);
  }
  if (t % 32 == 0) warp_squares[t / 32] = {squares, deltas};
  __syncthreads();
  if (t != 0) return;
  for (int w = 1; w < kWarps; ++w) {
    squares += warp_squares[w].x;
    deltas += warp_squares[w].y;
  }
  workspace.hidden[row] = hidden_bound(finite, scale, dim, squares, deltas);
}

// Block i: row i.
template <bool kDigits>
__global__ void __launch_bounds__(kThreads) steps_kernel(HeadArgs args, Workspace workspace) {
  const int row = static_cast<int>(blockIdx.x);
  float kept[kKept];
  const float amax = norm_and_keep(args, row, kept);
  write_steps<kDigits>(args, workspace, row, kept, amax);
}

// ---- 2: bounds of every logit --------------------------------------------------------------

// 4 codes with 4 steps (two to a word).
__device__ inline int dot4(uint32_t codes, int steps01, int steps23, int sum) {
  sum = __dp2a_lo(steps01, static_cast<int>(codes), sum);
  return __dp2a_hi(steps23, static_cast<int>(codes), sum);
}

// A warp takes a tile of neighbouring rows at a time: `kGroup` lanes share kBoundRows rows. Their
// products with `kTokens` rows of steps end, one each, spread over the group's lanes.
template <int kGroup, int kTokens>
struct BoundsTile {
  static constexpr int kRows = kBoundRows * (32 / kGroup);
  static constexpr int kValues = kBoundRows * kTokens;
  static_assert(kValues <= kGroup, "a lane ends with one product");

  uint4 codes[kBoundRows][kBoundLoads];

  __device__ static int first_row(int tile, int lane) {
    return tile * kRows + lane / kGroup * kBoundRows;
  }

  // The part of a tile's rows that starts at 16-byte chunk `first`. Loads nothing beyond the head.
  __device__ void load(const CertifiedHead& certified, int tile, int first, int lane) {
    const int chunks = static_cast<int>(certified.pitch() / 16);
    const int row = first_row(tile, lane);
#pragma unroll
    for (int r = 0; r < kBoundRows; ++r) {
      const uint4* from = reinterpret_cast<const uint4*>(certified.codes) +
                          static_cast<size_t>(row + r) * static_cast<size_t>(chunks);
#pragma unroll
      for (int u = 0; u < kBoundLoads; ++u) {
        const int chunk = first + u * kGroup + lane % kGroup;
        codes[r][u] =
            chunk < chunks && row + r < certified.rows ? __ldg(from + chunk) : uint4{0, 0, 0, 0};
      }
    }
  }

  // `steps`: [kTokens, 2, chunks] 16-byte words, the first 8 steps of every chunk and the last 8.
  __device__ void add(const int4* steps, int chunks, int first, int lane, int* sums) const {
#pragma unroll
    for (int u = 0; u < kBoundLoads; ++u) {
      const int chunk = min(first + u * kGroup + lane % kGroup, chunks - 1);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const int4 a = steps[2 * t * chunks + chunk];
        const int4 b = steps[(2 * t + 1) * chunks + chunk];
#pragma unroll
        for (int r = 0; r < kBoundRows; ++r) {
          int sum = sums[r * kTokens + t];
          sum = dot4(codes[r][u].x, a.x, a.y, sum);
          sum = dot4(codes[r][u].y, a.z, a.w, sum);
          sum = dot4(codes[r][u].z, b.x, b.y, sum);
          sums[r * kTokens + t] = dot4(codes[r][u].w, b.z, b.w, sum);
        }
      }
    }
  }

  // The product that reduce() leaves in a lane: row r * kTokens + token t.
  __device__ static int value_of(int lane) { return lane % kGroup / (kGroup / kValues); }
  __device__ static bool writes(int lane) { return lane % (kGroup / kValues) == 0; }
  __device__ static int64_t reduce(const int* sums, int lane) {
    long long values[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = sums[i];
    // While a lane holds several products it sends half of them to its partner.
    int left = kValues;
#pragma unroll
    for (int width = kGroup / 2; width >= 1; width /= 2) {
      if (left > 1) {
        left /= 2;
        const bool upper = (lane & width) != 0;
#pragma unroll
        for (int i = 0; i < kValues / 2; ++i) {
          if (i >= left) continue;
          const long long keep = upper ? values[i + left] : values[i];
          const long long give = upper ? values[i] : values[i + left];
          values[i] = keep + __shfl_xor_sync(kAllLanes, give, width);
        }
      } else {
        values[0] += __shfl_xor_sync(kAllLanes, values[0], width);
      }
    }
    return values[0];
  }
};

// The work of a block: part `part` of `parts` of the head's rows, with kTokens rows of steps from
// first_token on.
struct BoundsItem {
  int first_token, part, parts;
};

// The bounds of an item. `steps`: [kTokens, 2, chunks] 16-byte words of shared memory, the first 8
// steps of every chunk and the last 8.
template <int kGroup, int kTokens, class Use>
__device__ __forceinline__ void bound_part(const HeadArgs& head, const CertifiedHead& certified,
                                           const Use& use, const Workspace& workspace,
                                           const BoundsItem& item, int4* steps) {
  using Bounds = BoundsTile<kGroup, kTokens>;
  __shared__ HiddenBound hidden[kTokens];
  __shared__ uint32_t block_lower[kTokens];
  __shared__ const uint16_t* marks[kTokens];
  const int t = static_cast<int>(threadIdx.x);
  const int lane = t % 32;
  const int first_token = item.first_token;
  const int vocab = certified.rows;
  const int chunks = static_cast<int>(certified.pitch() / 16);
  const int tiles = (vocab + Bounds::kRows - 1) / Bounds::kRows;
  const int stride = item.parts * kWarps;
  constexpr int kSpan = kGroup * kBoundLoads;  // chunks of one load()
  let_next_start();

  // Fetch the first weights while the steps are still being made.
  const int value = Bounds::value_of(lane);
  const int token = first_token + value % kTokens;
  const auto row_of = [&](int tile) { return Bounds::first_row(tile, lane) + value / kTokens; };
  const auto bound_of = [&](int tile) {
    return __ldg(reinterpret_cast<const float4*>(certified.row_bounds) +
                 min(row_of(tile), vocab - 1));
  };
  int tile = item.part * kWarps + t / 32;
  Bounds codes;
  float4 bound{};
  if (tile < tiles) {
    codes.load(certified, tile, 0, lane);
    bound = bound_of(tile);
  }
  wait_for_previous();

  for (int i = t; i < kTokens * 2 * chunks; i += kThreads) {
    const int of = i / (2 * chunks);
    const int word = i % (2 * chunks);
    int4 eight{0, 0, 0, 0};
    if (first_token + of < head.rows) {
      eight = reinterpret_cast<const int4*>(
          workspace.steps)[static_cast<size_t>(first_token + of) * 2 * static_cast<size_t>(chunks) +
                           static_cast<size_t>(word)];
    }
    steps[2 * of * chunks + word % 2 * chunks + word / 2] = eight;
  }
  if (t < kTokens) {
    const int of = min(first_token + t, head.rows - 1);
    hidden[t] = workspace.hidden[of];
    block_lower[t] = 0;
    if constexpr (Use::kByRules) marks[t] = use.marks_of(of);
  }
  __syncthreads();
  const auto is_apart = [&](int id) {
    if constexpr (Use::kByRules) {
      const uint16_t* of = marks[value % kTokens];
      return of != nullptr && of[id] != 0;
    } else {
      return is_banned(head, id);
    }
  };

  float best_lower = -INFINITY;
  while (tile < tiles) {
    int sums[Bounds::kValues] = {};
    const int next = tile + stride;
    for (int first = 0; first < chunks; first += kSpan) {
      codes.add(steps, chunks, first, lane, sums);
      // The next part, of this tile or the next one, loads during the rest of the work.
      if (first + kSpan < chunks) {
        codes.load(certified, tile, first + kSpan, lane);
      } else if (next < tiles) {
        codes.load(certified, next, 0, lane);
      }
    }
    const CertifiedRow row_bound{bound.x, bound.y, bound.z, bound.w};
    if (next < tiles) bound = bound_of(next);
    const LogitBounds bounds = logit_bounds(static_cast<float>(Bounds::reduce(sums, lane)),
                                            row_bound, hidden[value % kTokens]);
    const int row = row_of(tile);
    if (Bounds::writes(lane) && row < vocab && token < head.rows) {
      head.logits[static_cast<size_t>(token) * static_cast<size_t>(vocab) +
                  static_cast<size_t>(row)] = bounds.upper;
      // False where there is no bound (NaN).
      if (bounds.lower > best_lower && !is_apart(row)) best_lower = bounds.lower;
    }
    tile = next;
  }
  if constexpr (Use::kByRules) {
    const int group = item.part * kWarps + t / 32;
#pragma unroll
    for (int of = 0; of < kTokens; ++of) {
      const float most = max_warp(value % kTokens == of ? best_lower : -INFINITY);
      if (lane == 0 && first_token + of < head.rows) {
        *use.lower_of(workspace, first_token + of, group) = most;
      }
    }
    return;
  }
  if (best_lower > -INFINITY) atomicMax(&block_lower[value % kTokens], ordered_bits(best_lower));
  __syncthreads();
  if (t < kTokens && block_lower[t] != 0) {
    atomicMax(workspace.lower + first_token + t, block_lower[t]);
  }
}

// Block (i, j): part i of the head's rows, tokens j * kTokens and up.
template <int kGroup, int kTokens, class Use>
__global__ void __launch_bounds__(kThreads, bounds_blocks_per_sm(kTokens))
    bounds_kernel(HeadArgs head, CertifiedHead certified, Use use, Workspace workspace) {
  extern __shared__ int4 steps[];
  const BoundsItem item{static_cast<int>(blockIdx.y) * kTokens, static_cast<int>(blockIdx.x),
                        static_cast<int>(gridDim.x)};
  bound_part<kGroup, kTokens>(head, certified, use, workspace, item, steps);
}

// ---- 3: rescoring --------------------------------------------------------------------------

// Where the chosen id of a row goes.
__device__ inline void publish(const CertifiedHeadArgs& args, int row, uint64_t key, int rescored) {
  args.head.argmax[row] = id_of_key(key);
  args.rescored[row] = rescored;
}

// Partial sum threadIdx.x of canonical_sum for row v of the head.
template <DenseType kType>
__device__ inline float partial_logit(const HeadArgs& head, int v, const float* normed) {
  constexpr int kBatch = 10;  // loads in flight: all of a row of up to 2560 columns
  const int dim = head.w.cols;
  const size_t base = static_cast<size_t>(v) * static_cast<size_t>(dim);
  float partial = 0.0f;
  for (int begin = static_cast<int>(threadIdx.x); begin < dim; begin += kBatch * kThreads) {
    float w[kBatch];
    float y[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = begin + j * kThreads;
      w[j] = i < dim ? widen(head.w.data, kType, base + static_cast<size_t>(i)) : 0.0f;
      y[j] = i < dim ? normed[i] : 0.0f;
    }
    // Steps beyond the row add 0 * 0: the canonical sum may have them.
#pragma unroll
    for (int j = 0; j < kBatch; ++j) partial = fmaf(w[j], y[j], partial);
  }
  return partial;
}

// The work of a block: row `row` of the states with kScans * kThreads rows of the head from
// first_id on; `items`: the blocks in all.
struct RescoreItem {
  int row, first_id, items;
};

// Collects the candidates among the item's rows of the head and computes their logits one after the
// other: thread j makes partial sum j of canonical_sum. The block that ends last puts out the ids.
template <DenseType kType, int kScans>
__device__ __forceinline__ void rescore_part(const CertifiedHeadArgs& args,
                                             const Workspace& workspace, const RescoreItem& item) {
  __shared__ int candidates[kScans * kThreads];
  __shared__ int n_candidates;
  __shared__ float partials[kPartials];
  __shared__ bool last;
  const HeadArgs& head = args.head;
  const int t = static_cast<int>(threadIdx.x);
  const int row = item.row;
  const int dim = head.w.cols;
  if (t == 0) n_candidates = 0;
  __syncthreads();
  wait_for_previous();

  const float lower = from_ordered_bits(workspace.lower[row]);
  const float* upper = head.logits + static_cast<size_t>(row) * static_cast<size_t>(head.w.rows);
  const int first = item.first_id + t;
  float scanned[kScans];
#pragma unroll
  for (int i = 0; i < kScans; ++i) {
    scanned[i] = upper[min(first + i * kThreads, head.w.rows - 1)];
  }
#pragma unroll
  for (int i = 0; i < kScans; ++i) {
    const int v = first + i * kThreads;
    // True also where there is no bound (NaN).
    if (v < head.w.rows && !(scanned[i] < lower)) candidates[atomicAdd(&n_candidates, 1)] = v;
  }
  __syncthreads();

  const float* normed = head.normed + static_cast<size_t>(row) * static_cast<size_t>(dim);
  uint64_t best = 0;
  for (int c = 0; c < n_candidates; ++c) {
    const int v = candidates[c];
    partials[t] = partial_logit<kType>(head, v, normed);
    __syncthreads();
    if (t < 32) {
      const float logit = fold_partials(partials);
      if (t == 0) {
        if (!isfinite(logit)) set_fault(head.fault, head.layers + 1);
        const uint64_t key = logit_key(logit, v);
        if (key > best && !is_banned(head, v)) best = key;
      }
    }
    __syncthreads();
  }
  if (t == 0) {
    if (n_candidates > 0) {
      if (best != 0) atomicMax(workspace.best + row, static_cast<unsigned long long>(best));
      atomicAdd(workspace.rescored + row, n_candidates);
    }
    // Key and count are in before the block counts itself done.
    __threadfence();
    last = atomicAdd(workspace.head_done, 1) == item.items - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  // All blocks have read their lower bound: everything goes back to zero.
  for (int r = t; r < head.rows; r += kThreads) {
    workspace.lower[r] = 0;
    publish(args, r, atomicExch(workspace.best + r, 0ull), atomicExch(workspace.rescored + r, 0));
  }
  if (t == 0) *workspace.head_done = 0;
}

// Block (i, j): part i of the head's rows, row j.
template <DenseType kType, int kScans>
__global__ void __launch_bounds__(kThreads)
    rescore_kernel(CertifiedHeadArgs args, Workspace workspace) {
  const RescoreItem item{static_cast<int>(blockIdx.y),
                         static_cast<int>(blockIdx.x) * kScans * kThreads,
                         static_cast<int>(gridDim.x * gridDim.y)};
  let_next_start();
  rescore_part<kType, kScans>(args, workspace, item);
}

template <int kTokens, class Use, size_t... I>
void launch_groups(const BoundsPlan& plan, const HeadArgs& head, const CertifiedHead& certified,
                   const Use& use, const Workspace& workspace, cudaStream_t stream,
                   std::index_sequence<I...>) {
  const auto launch_if = [&](bool is_instance, auto kernel) {
    if (is_instance) launch(kernel, plan.launch, stream, head, certified, use, workspace);
    return is_instance;
  };
  require_instance(
      (launch_if(plan.group == kBoundGroups[I], bounds_kernel<kBoundGroups[I], kTokens, Use>) ||
       ...));
}

template <class Use>
void launch_tokens(const BoundsPlan& plan, const HeadArgs& head, const CertifiedHead& certified,
                   const Use& use, const Workspace& workspace, cudaStream_t stream) {
  const auto groups = std::make_index_sequence<std::size(kBoundGroups)>();
  if (plan.tokens == 1) {
    launch_groups<1>(plan, head, certified, use, workspace, stream, groups);
  } else {
    launch_groups<kBoundTokens>(plan, head, certified, use, workspace, stream, groups);
  }
}

template <int kScans>
void launch_scans(const LaunchSize& size, const CertifiedHeadArgs& args, const Workspace& workspace,
                  cudaStream_t stream) {
  with_type(args.head.w.type, [&](auto type) {
    launch(rescore_kernel<type.value, kScans>, size, stream, args, workspace);
  });
}

}  // namespace

void build_certified_head(const DenseMatrix& w, int8_t* codes, CertifiedRow* row_bounds,
                          cudaStream_t stream) {
  launch(certify_kernel, dim3(static_cast<unsigned>(divide_up(w.rows, kWarps))), dim3(kThreads), 0,
         stream, w, codes, row_bounds);
}

void launch_steps(const CertifiedPlan& plan, const HeadArgs& args, const Workspace& workspace,
                  cudaStream_t stream) {
  launch(plan.has_digits() ? steps_kernel<true> : steps_kernel<false>, plan.steps, stream, args,
         workspace);
}

void launch_bounds(const BoundsPlan& plan, const CertifiedHeadArgs& args,
                   const Workspace& workspace, cudaStream_t stream) {
  launch_tokens(plan, args.head, args.certified, ForArgMax{}, workspace, stream);
}

void launch_bounds(const BoundsPlan& plan, const CertifiedChooseArgs& args,
                   const Workspace& workspace, cudaStream_t stream) {
  launch_tokens(plan, args.head, args.certified, ForChoices{args.choose, plan.groups()}, workspace,
                stream);
}

void launch_rescore(const CertifiedPlan& plan, const CertifiedHeadArgs& args,
                    const Workspace& workspace, cudaStream_t stream) {
  if (plan.scans == kScansOfMany) {
    launch_scans<kScansOfMany>(plan.rescore, args, workspace, stream);
  } else {
    launch_scans<kScansOfFew>(plan.rescore, args, workspace, stream);
  }
}

}  // namespace edgellm::cuda
