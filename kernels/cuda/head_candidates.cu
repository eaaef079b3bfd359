// certified_choose between the bounds of all logits (head_certified.cu, head_certified_rows.cu) and
// the choice (choose.cu): the ids that may be chosen, and their logits.
#include "kernels/choice.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/row_choice.cuh"
#include "kernels/cuda/device/sort_block.cuh"
#include "kernels/cuda/device/warp_logit.cuh"
#include "kernels/cuda/head_certified.cuh"
#include "kernels/cuda/head_kernels.h"

namespace edgellm::cuda {
namespace {

// Where so few are kept, a thread's groups count as one: few of the largest bounds meet there.
constexpr int kFewKept = kChooseThreads / 8;

// Block i: what as many logits of row i reach as its rule keeps. In each group the logit of an id,
// which is not adjusted, reaches the group's bound; so of the bounds, in falling order, the one
// whose number is that of the ids kept.
__global__ void __launch_bounds__(kChooseThreads)
    least_kernel(ChooseArgs choose, Workspace workspace, int groups, int32_t* rescored) {
  extern __shared__ uint4 memory[];
  __shared__ RowNotes notes;
  const int t = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x);
  let_next_start();
  // Places and rules are inputs of the step, written before its first kernel starts.
  const int kept = most_kept(choose.rules[choose.places.sequence[choose.row_list[row]]]);
  wait_for_previous();
  const float* lower =
      workspace.group_lower + static_cast<size_t>(row) * static_cast<size_t>(groups);
  uint32_t rank = 0;
  if (kept > 0 && kept <= min(kFewKept, groups)) {
    uint32_t own = 0;
    for (int i = t; i < groups; i += kChooseThreads) own = max(own, logit_rank(lower[i]));
    const uint32_t sorted = sort_block(own, reinterpret_cast<uint32_t*>(memory));
    if (t == kept - 1) notes.border_cell = sorted;
    __syncthreads();
    rank = notes.border_cell;
  } else if (kept > 0 && kept <= groups) {
    ChoiceRow<1> group(groups, memory, notes);
    const auto lower_of = [lower](int i) { return lower[i]; };
    rank = group
               .find_border(
                   lower_of, /*cached=*/false, Border(), 0, [](float) { return uint64_t{1}; },
                   [kept](uint64_t) { return static_cast<uint64_t>(kept); })
               .rank;
  }
  if (t != 0) return;
  workspace.least[row] = rank == 0 ? -INFINITY : from_ordered_bits(rank);  // 0: of -inf, or none
  rescored[row] = 0;
}

// By one warp.
template <DenseType kType>
__device__ float logit_of(const HeadArgs& head, int v, const float* normed, int lane) {
  if constexpr (kType != DenseType::kF32) {
    if (head.w.cols % 2 == 0) return paired_logit<kType>(head.w, v, normed, lane);
  }
  return any_logit<kType>(head.w, v, normed, lane);
}

// Block (i, j): part i of the head's rows, row j of the states. A warp takes a candidate at a time.
template <DenseType kType, int kScans>
__global__ void __launch_bounds__(kThreads)
    candidates_kernel(HeadArgs head, ChooseArgs choose, Workspace workspace, int32_t* rescored) {
  __shared__ int candidates[kScans * kThreads];
  __shared__ int n_candidates;
  const int t = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  const int vocab = head.w.rows;
  if (t == 0) n_candidates = 0;
  __syncthreads();
  let_next_start();
  // Places and rules are inputs of the step, written before its first kernel starts.
  const int sequence = choose.places.sequence[choose.row_list[row]];
  const uint16_t* marks =
      choose.rules[sequence].marks != 0
          ? choose.marks + static_cast<size_t>(sequence) * static_cast<size_t>(vocab)
          : nullptr;
  wait_for_previous();

  const float least = workspace.least[row];
  float* logits = head.logits + static_cast<size_t>(row) * static_cast<size_t>(vocab);
  const int first = static_cast<int>(blockIdx.x) * kScans * kThreads + t;
  float upper[kScans];
#pragma unroll
  for (int i = 0; i < kScans; ++i) upper[i] = logits[min(first + i * kThreads, vocab - 1)];
  const int lane = t % 32;
  uint32_t* listed =
      workspace.listed + static_cast<size_t>(row) * static_cast<size_t>(listed_words(vocab));
#pragma unroll
  for (int i = 0; i < kScans; ++i) {
    const int v = first + i * kThreads;
    const uint32_t mark = marks != nullptr && v < vocab ? marks[v] : 0;
    // The bounds say nothing of a logit that is adjusted.
    const bool is_certain = mark != 0 && (mark & kMarkBanned) == 0;
    // True also where there is no bound (NaN).
    const bool may_be_large = !(upper[i] < least);
    const bool is_candidate = v < vocab && (is_certain || may_be_large);
    const uint32_t bits = __ballot_sync(kAllLanes, is_candidate);
    if (lane == 0 && v < vocab) listed[v / 32] = bits;
    if (is_candidate) candidates[atomicAdd(&n_candidates, 1)] = v;
  }
  __syncthreads();

  const float* normed = head.normed + static_cast<size_t>(row) * static_cast<size_t>(head.w.cols);
  for (int c = t / 32; c < n_candidates; c += kWarps) {
    const int v = candidates[c];
    const float logit = logit_of<kType>(head, v, normed, lane);
    if (lane != 0) continue;
    if (!isfinite(logit)) set_fault(head.fault, head.layers + 1);
    logits[v] = logit;
  }
  if (t == 0 && n_candidates > 0) atomicAdd(rescored + row, n_candidates);
}

template <int kScans>
void launch_scans(const LaunchSize& size, const CertifiedChooseArgs& args,
                  const Workspace& workspace, cudaStream_t stream) {
  with_type(args.head.w.type, [&](auto type) {
    launch(candidates_kernel<type.value, kScans>, size, stream, args.head, args.choose, workspace,
           args.rescored);
  });
}

}  // namespace

void launch_least(const CertifiedPlan& plan, const CertifiedChooseArgs& args,
                  const Workspace& workspace, cudaStream_t stream) {
  launch(least_kernel, plan.least, stream, args.choose, workspace, plan.groups(), args.rescored);
}

void launch_candidates(const CertifiedPlan& plan, const CertifiedChooseArgs& args,
                       const Workspace& workspace, cudaStream_t stream) {
  if (plan.scans == kScansOfMany) {
    launch_scans<kScansOfMany>(plan.rescore, args, workspace, stream);
  } else {
    launch_scans<kScansOfFew>(plan.rescore, args, workspace, stream);
  }
}

}  // namespace edgellm::cuda
