// choose, choose_listed and logprobs, on the logits where they are; count_choices. All sums are
// integers, so the order in which threads and blocks add them does not matter.
#include <cstddef>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/row_choice.cuh"
#include "kernels/cuda/device/sort_block.cuh"
#include "kernels/cuda/head_kernels.h"

namespace edgellm::cuda {
namespace {

// The adjusted logits of a row.
struct AdjustedRow {
  const float* logits;
  const uint16_t* marks;  // null where the rule keeps none
  const LogitBias* biases;
  const ChoiceRule& rule;

  __device__ AdjustedRow(const ChooseArgs& args, const ChoiceRule& of, int row, int sequence)
      : logits(args.logits + static_cast<size_t>(row) * static_cast<size_t>(args.vocab)),
        marks(of.marks != 0
                  ? args.marks + static_cast<size_t>(sequence) * static_cast<size_t>(args.vocab)
                  : nullptr),
        biases(args.biases + static_cast<ptrdiff_t>(sequence) * kMaxBiases),
        rule(of) {}

  __device__ float operator()(int id) const {
    const float logit = logits[id];
    if (marks == nullptr) return logit;
    return adjusted_logit(logit, marks[id], rule, biases, id);
  }
};

// The id that the row's warps find among `count`; -1 in all lanes of the others. logit_of(id) is
// adjusted.
template <int kBlocks, class LogitOf>
__device__ int sample(ChoiceRow<kBlocks>& row, const LogitOf& logit_of, const ChoiceRule& rule,
                      bool cached, float largest, int count, uint64_t random) {
  const auto weight = [&](float logit) {
    return logit_weight(logit, largest, rule.inverse_temperature);
  };
  Border border;
  if (rule.top_k > 0 && rule.top_k < count) {
    const auto k = static_cast<uint64_t>(rule.top_k);
    border = row.find_border(
        logit_of, cached, border, 0, [](float) { return uint64_t{1}; },
        [k](uint64_t) { return k; });
  }
  uint64_t tie_weight = border.cuts() ? weight(from_ordered_bits(border.rank)) : 0;
  if (rule.top_p > 0) {
    border = row.find_border(logit_of, cached, border, tie_weight, weight,
                             [&](uint64_t all) { return top_p_sum(all, rule.top_p); });
    // As many ids as have that weight together.
    tie_weight = weight(from_ordered_bits(border.rank));
    border.ties = (border.ties + tie_weight - 1) / max(tie_weight, uint64_t{1});
  }
  if (tie_weight < rule.min_weight) tie_weight = 0;
  // Of an id above the border.
  const auto kept_weight = [&](float logit) {
    const uint64_t own = weight(logit);
    return own >= rule.min_weight ? own : 0;
  };

  uint64_t sum = 0;
  uint64_t ties = 0;
  row.for_ids(logit_of, cached, [&](int, float logit) {
    const uint32_t rank = logit_rank(logit);
    if (!border.cuts() || rank > border.rank) sum += kept_weight(logit);
    if (border.cuts() && rank == border.rank) ++ties;
  });
  sum = sum_warp(sum);
  if (border.cuts()) {
    ties = row.kept_ties(border, sum_warp(ties));
    sum += ties * tie_weight;
  }
  const WarpSums sums = row.sum_row(sum);
  uint64_t drawn = share_of(sums.total, random);
  if (drawn < sums.before || drawn >= sums.before + sum) return -1;
  drawn -= sums.before;

  // By this warp, 32 ids at a time.
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = row.begin(); first < row.end(); first += 32) {
    const int id = first + lane;
    uint64_t own = 0;
    bool is_tie = false;
    if (id < row.end()) {
      const float logit = cached ? row.cached_value(id) : logit_of(id);
      const uint32_t rank = logit_rank(logit);
      if (!border.cuts() || rank > border.rank) own = kept_weight(logit);
      is_tie = border.cuts() && rank == border.rank;
    }
    const unsigned tied = __ballot_sync(kAllLanes, is_tie);
    const auto ties_before = static_cast<uint64_t>(__popc(tied & ((1u << lane) - 1)));
    if (is_tie && ties_before < ties) own = tie_weight;
    ties -= min(ties, static_cast<uint64_t>(__popc(tied)));
    const uint64_t up_to = scan_warp(own);
    const unsigned beyond = __ballot_sync(kAllLanes, up_to > drawn);
    if (beyond != 0) return first + __ffs(static_cast<int>(beyond)) - 1;
    drawn -= __shfl_sync(kAllLanes, up_to, 31);
  }
  return -1;
}

// The id that the rule chooses among `count`, in the thread that `writes` it; `row` has them all.
template <int kBlocks, class LogitOf>
__device__ __forceinline__ int choose_id(ChoiceRow<kBlocks>& row, const LogitOf& logit_of,
                                         const ChoiceRule& rule, bool cached, int count,
                                         int position, bool& writes) {
  const uint64_t best = row.find_best(logit_of, cached);
  if (rule.samples == 0 || best == 0) {
    writes = RowBlocks<kBlocks>::rank() == 0 && threadIdx.x == 0;
    return id_of_key(best);
  }
  const int id =
      sample(row, logit_of, rule, cached, from_ordered_bits(static_cast<uint32_t>(best >> 32)),
             count, random_bits(rule.seed, static_cast<uint64_t>(position)));
  writes = id >= 0 && threadIdx.x % 32 == 0;
  return id;
}

// Block i: part i % kBlocks of row i / kBlocks.
template <int kBlocks>
__global__ void __launch_bounds__(kChooseThreads) choose_kernel(ChooseArgs args, bool cached) {
  extern __shared__ uint4 memory[];
  __shared__ RowNotes notes;
  const int row = static_cast<int>(blockIdx.x) / kBlocks;
  ChoiceRow<kBlocks> choice(args.vocab, memory, notes);
  let_next_start();
  wait_for_previous();
  const int pass_row = args.row_list[row];
  const int sequence = args.places.sequence[pass_row];
  const ChoiceRule rule = args.rules[sequence];
  const AdjustedRow logit_of(args, rule, row, sequence);
  bool writes = false;
  const int id = choose_id(choice, logit_of, rule, cached, args.vocab,
                           args.places.position[pass_row] + 1, writes);
  if (writes) args.ids[row] = id;
  // No block leaves while another one looks into it.
  RowBlocks<kBlocks>::meet();
}

// What a scan over the block tells a thread: the sum of the threads below it, and of all.
struct BlockScan {
  uint64_t before;
  uint64_t total;

  __device__ BlockScan(uint64_t mine, uint64_t* warps) {
    const uint64_t up_to = scan_warp(mine);
    __syncthreads();  // `warps` is free
    if (threadIdx.x % 32 == 31) warps[threadIdx.x / 32] = up_to;
    __syncthreads();
    const WarpSums sums = look_at(warps);
    before = sums.before + up_to - mine;
    total = sums.total;
  }
};

// The ids with set bits, in ascending order, the first kMostListed of them into `ids`. Returns how
// many there are.
__device__ int list_ids(const uint32_t* bits, int words, int32_t* ids, uint64_t* warps) {
  const int each = divide_up(words, kChooseThreads);
  const int begin = min(static_cast<int>(threadIdx.x) * each, words);
  const int end = min(begin + each, words);
  uint64_t mine = 0;
  for (int w = begin; w < end; ++w) mine += static_cast<uint64_t>(__popc(bits[w]));
  const BlockScan scan(mine, warps);
  int at = static_cast<int>(scan.before);
  for (int w = begin; w < end; ++w) {
    for (uint32_t left = bits[w]; left != 0; left &= left - 1) {
      if (at < kMostListed) ids[at] = 32 * w + __ffs(static_cast<int>(left)) - 1;
      ++at;
    }
  }
  __syncthreads();
  return static_cast<int>(scan.total);
}

// The choice among `count` ids, at most one a thread: `ids` in ascending order with their adjusted
// `logits`. `memory`: [kChooseThreads] keys. Returns the id in the thread that `writes` it.
__device__ int choose_sorted(const ChoiceRule& rule, const int32_t* ids, const float* logits,
                             int count, int position, uint64_t* memory, uint64_t* warps,
                             bool& writes) {
  const int t = static_cast<int>(threadIdx.x);
  const float own = t < count ? logits[t] : -INFINITY;
  // Its place in the order of the filters, and the thread whose id it is.
  const uint64_t key = sort_block(own != -INFINITY ? logit_key(own, t) : 0, memory);
  __syncthreads();
  if (t == 0) memory[0] = key;
  __syncthreads();
  const uint64_t best = memory[0];
  if (rule.samples == 0 || best == 0) {
    writes = t == 0;
    return best == 0 ? -1 : ids[id_of_key(best)];
  }
  const auto logit_of = [](uint64_t of) {
    return from_ordered_bits(static_cast<uint32_t>(of >> 32));
  };
  uint64_t weight = 0;
  if (key != 0 && (rule.top_k <= 0 || t < rule.top_k)) {
    weight = logit_weight(logit_of(key), logit_of(best), rule.inverse_temperature);
  }
  if (rule.top_p > 0) {
    const BlockScan all(weight, warps);
    if (all.before >= top_p_sum(all.total, rule.top_p)) weight = 0;
  }
  if (weight < rule.min_weight) weight = 0;
  // Back into the order of ids.
  __syncthreads();
  memory[t] = 0;
  __syncthreads();
  if (key != 0) memory[id_of_key(key)] = weight;
  __syncthreads();
  weight = memory[t];
  const BlockScan kept(weight, warps);
  const uint64_t drawn =
      share_of(kept.total, random_bits(rule.seed, static_cast<uint64_t>(position)));
  writes = drawn >= kept.before && drawn - kept.before < weight;
  return writes ? ids[t] : -1;
}

// Block i: row i. Only listed ids are chosen, and only their logits are read. The row's memory:
// [kBorderBytes], then the ids and their adjusted logits.
__global__ void __launch_bounds__(kChooseThreads)
    choose_listed_kernel(ChooseArgs args, const uint32_t* listed) {
  extern __shared__ uint4 memory[];
  __shared__ RowNotes notes;
  auto* const ids = reinterpret_cast<int32_t*>(reinterpret_cast<char*>(memory) + kBorderBytes);
  auto* const logits = reinterpret_cast<float*>(ids + kMostListed);
  const int row = static_cast<int>(blockIdx.x);
  const int words = listed_words(args.vocab);
  const uint32_t* bits = listed + static_cast<size_t>(row) * static_cast<size_t>(words);
  let_next_start();
  // Places and rules are inputs of the step, written before its first kernel starts.
  const int pass_row = args.row_list[row];
  const int sequence = args.places.sequence[pass_row];
  const int position = args.places.position[pass_row] + 1;
  const ChoiceRule rule = args.rules[sequence];
  wait_for_previous();
  const AdjustedRow adjusted(args, rule, row, sequence);
  const int count = list_ids(bits, words, ids, notes.warps);
  bool writes = false;
  int id = -1;
  if (count <= kMostListed) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kChooseThreads) {
      logits[i] = adjusted(ids[i]);
    }
    __syncthreads();
    if (count <= kChooseThreads) {
      id = choose_sorted(rule, ids, logits, count, position, reinterpret_cast<uint64_t*>(memory),
                         notes.warps, writes);
    } else {
      ChoiceRow<1> choice(count, memory, notes);
      const auto logit_of = [logits](int i) { return logits[i]; };
      id = choose_id(choice, logit_of, rule, /*cached=*/false, count, position, writes);
      if (id >= 0) id = ids[id];
    }
  } else {
    ChoiceRow<1> choice(args.vocab, memory, notes);
    const auto logit_of = [&](int i) {
      return (bits[i / 32] >> i % 32 & 1) != 0 ? adjusted(i) : -INFINITY;
    };
    id = choose_id(choice, logit_of, rule, /*cached=*/false, args.vocab, position, writes);
  }
  if (writes) args.ids[row] = id;
}

// Block i: row i.
__global__ void __launch_bounds__(kChooseThreads) logprobs_kernel(LogprobArgs args, bool cached) {
  extern __shared__ uint4 memory[];
  __shared__ RowNotes notes;
  __shared__ int n_found;
  const int row = static_cast<int>(blockIdx.x);
  ChoiceRow<1> choice(args.vocab, memory, notes);
  let_next_start();
  wait_for_previous();
  const float* logits = args.logits + static_cast<size_t>(row) * static_cast<size_t>(args.vocab);
  const auto logit_of = [logits](int id) { return logits[id]; };
  if (threadIdx.x == 0) n_found = 0;

  const uint64_t best = choice.find_best(logit_of, cached);
  const float largest = from_ordered_bits(static_cast<uint32_t>(best >> 32));
  uint64_t sum = 0;
  choice.for_ids(logit_of, cached,
                 [&](int, float logit) { sum += logit_weight(logit, largest, 1.0f); });
  const WarpSums sums = choice.sum_row(sum_warp(sum));
  if (threadIdx.x == 0) {
    const int chosen = args.ids[row];
    args.sums[row] = {sums.total, largest, chosen < 0 ? 0.0f : logits[chosen]};
  }
  if (args.n_top == 0) return;

  const auto n_top = static_cast<uint64_t>(args.n_top);
  const Border border = choice.find_border(
      logit_of, cached, Border(), 0, [](float) { return uint64_t{1}; },
      [n_top](uint64_t) { return n_top; });
  uint64_t ties = 0;
  choice.for_ids(logit_of, cached,
                 [&](int, float logit) { ties += logit_rank(logit) == border.rank ? 1 : 0; });
  ties = choice.kept_ties(border, sum_warp(ties));
  LogprobLogit* top = args.top + static_cast<ptrdiff_t>(row) * args.n_top;
  for (int first = choice.begin(); first < choice.end(); first += 32) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int id = first + lane;
    const float logit = id < choice.end() ? logits[id] : -INFINITY;
    const uint32_t rank = logit_rank(logit);
    const bool is_tie = id < choice.end() && rank == border.rank;
    const unsigned tied = __ballot_sync(kAllLanes, is_tie);
    const auto ties_before = static_cast<uint64_t>(__popc(tied & ((1u << lane) - 1)));
    if (rank > border.rank || (is_tie && ties_before < ties)) {
      top[atomicAdd(&n_found, 1)] = {id, logit};
    }
    ties -= min(ties, static_cast<uint64_t>(__popc(tied)));
  }
}

// One block; a thread has a row or several.
__global__ void count_choices_kernel(CountArgs args) {
  let_next_start();
  wait_for_previous();
  for (int row = static_cast<int>(threadIdx.x); row < args.rows;
       row += static_cast<int>(blockDim.x)) {
    count_choice(args, row);
  }
}

template <int kBlocks>
void launch_choose(const ChoosePlan& plan, const ChooseArgs& args, cudaStream_t stream) {
  if constexpr (kBlocks == 1) {
    launch(choose_kernel<1>, plan.launch, stream, args, plan.cached);
  } else {
    launch_clusters(choose_kernel<kBlocks>, kBlocks, plan.launch, stream, args, plan.cached);
  }
}

}  // namespace

void choose(const ChooseArgs& args, cudaStream_t stream) {
  const ChoosePlan plan = pick_choose(args.rows, args.vocab, current_device());
  switch (plan.blocks) {
    case 1:
      return launch_choose<1>(plan, args, stream);
    case 2:
      return launch_choose<2>(plan, args, stream);
    case 4:
      return launch_choose<4>(plan, args, stream);
    default:
      return launch_choose<8>(plan, args, stream);
  }
}

void choose_listed(const ChooseArgs& args, const uint32_t* listed, cudaStream_t stream) {
  launch(choose_listed_kernel, pick_choose_listed(args.rows).launch, stream, args, listed);
}

void count_choices(const CountArgs& args, cudaStream_t stream) {
  launch(count_choices_kernel, dim3(1), dim3(256), 0, stream, args);
}

void logprobs(const LogprobArgs& args, cudaStream_t stream) {
  const ChoosePlan plan = pick_logprobs(args.rows, args.vocab, current_device());
  launch(logprobs_kernel, plan.launch, stream, args, plan.cached);
}

}  // namespace edgellm::cuda
