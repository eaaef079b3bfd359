// Choosing ids on the CPU: one thread a row. Filters look for their border with a histogram, and
// sort only what lies in the cell of the border.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>

#include "base/error.h"
#include "kernels/choice.h"
#include "kernels/cpu/candidates.h"
#include "kernels/cpu/carver.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {
namespace {

// Cells are named by the upper bits of numbers whose order is that of the filters.
constexpr int kCellShift = 20;
constexpr size_t kRankCells = size_t{1} << (32 - kCellShift);
constexpr size_t kPowerCells = (0x3f800000u >> kCellShift) + 1;  // of floats in [0, 1]

struct Scratch {
  float* adjusted = nullptr;        // [vocab]
  float* powers = nullptr;          // [vocab]
  Candidate* candidates = nullptr;  // [vocab]
  uint64_t* cells = nullptr;        // [max(kRankCells, kPowerCells)]

  static Scratch take(Pool& pool, int thread, size_t vocab) {
    const auto place = [&](Carver carver, Scratch& scratch) {
      scratch.adjusted = carver.take<float>(vocab);
      scratch.powers = carver.take<float>(vocab);
      scratch.candidates = carver.take<Candidate>(vocab);
      scratch.cells = carver.take<uint64_t>(std::max(kRankCells, kPowerCells));
      return carver.used();
    };
    Scratch scratch;
    const size_t bytes = place(Carver(), scratch);
    place(Carver(pool.thread_scratch(thread, bytes)), scratch);
    return scratch;
  }
};

// Calls `with(id, mark)` for every id that has a mark.
template <class With>
void for_marked(const uint16_t* marks, int vocab, With with) {
  constexpr int kAtOnce = sizeof(uint64_t) / sizeof(uint16_t);
  for (int begin = 0; begin < vocab; begin += kAtOnce) {
    const int n = std::min(kAtOnce, vocab - begin);
    uint64_t any = 0;
    std::memcpy(&any, marks + begin, static_cast<size_t>(n) * sizeof(uint16_t));
    if (any == 0) continue;
    for (int id = begin; id < begin + n; ++id) {
      if (marks[id] != 0) with(id, marks[id]);
    }
  }
}

// One row of a ChooseArgs, sampled.
class Sampler {
 public:
  Sampler(const Primitives& isa, const ChoiceRule& rule, const float* logits, int vocab,
          float largest, const Scratch& scratch)
      : rule_(rule), logits_(logits), vocab_(vocab), scratch_(scratch) {
    isa.powers(logits, largest, rule.inverse_temperature, vocab, scratch.powers);
  }

  // For a banned id, whose logit is -inf.
  void exclude(int id) { scratch_.powers[id] = 0; }

  int32_t draw(int position) {
    if (rule_.top_k > 0 && rule_.top_k < vocab_) keep_top_k();
    if (rule_.top_p > 0) keep_top_p();
    // No id that stays has a smaller power.
    const float least = has_last_ ? scratch_.powers[last_.id] : 0;
    const auto kept_weight = [&](int id) -> uint64_t {
      if (scratch_.powers[id] < least || !is_kept(id)) return 0;
      const uint64_t weight = weight_of(scratch_.powers[id]);
      return weight >= rule_.min_weight ? weight : 0;
    };
    uint64_t total = 0;
    for (int id = 0; id < vocab_; ++id) total += kept_weight(id);
    const uint64_t drawn =
        share_of(total, random_bits(rule_.seed, static_cast<uint64_t>(position)));
    uint64_t sum = 0;
    for (int id = 0; id < vocab_; ++id) {
      sum += kept_weight(id);
      if (sum > drawn) return id;
    }
    throw ContractViolation("choose: no id was drawn");
  }

 private:
  bool is_kept(int id) const { return !has_last_ || !is_larger(last_, {logits_[id], id}); }
  void keep_down_to(const Candidate& last) {
    last_ = last;
    has_last_ = true;
  }

  // The candidates of a cell.
  template <class CellOf>
  std::span<Candidate> in_cell(size_t cell, CellOf cell_of) const {
    size_t n = 0;
    for (int id = 0; id < vocab_; ++id) {
      if (cell_of(id) == cell && is_kept(id)) scratch_.candidates[n++] = {logits_[id], id};
    }
    return {scratch_.candidates, n};
  }

  // The cell in which the sum over cells, from the highest one down, reaches `wanted`. That
  // becomes what the cell has to give.
  size_t cell_of_border(size_t n_cells, uint64_t& wanted) const {
    size_t cell = n_cells - 1;
    while (scratch_.cells[cell] < wanted) wanted -= scratch_.cells[cell--];
    return cell;
  }

  void keep_top_k() {
    const auto cell_of = [&](int id) {
      return static_cast<size_t>(logit_rank(logits_[id]) >> kCellShift);
    };
    std::fill_n(scratch_.cells, kRankCells, uint64_t{0});
    for (int id = 0; id < vocab_; ++id) ++scratch_.cells[cell_of(id)];
    auto wanted = static_cast<uint64_t>(rule_.top_k);
    const std::span<Candidate> candidates = in_cell(cell_of_border(kRankCells, wanted), cell_of);
    const auto last = candidates.begin() + static_cast<ptrdiff_t>(wanted - 1);
    std::nth_element(candidates.begin(), last, candidates.end(), is_larger);
    keep_down_to(*last);
  }

  void keep_top_p() {
    const auto cell_of = [&](int id) {
      return static_cast<size_t>(float_to_bits(scratch_.powers[id]) >> kCellShift);
    };
    std::fill_n(scratch_.cells, kPowerCells, uint64_t{0});
    uint64_t total = 0;
    for (int id = 0; id < vocab_; ++id) {
      if (scratch_.powers[id] == 0 || !is_kept(id)) continue;
      const uint64_t weight = weight_of(scratch_.powers[id]);
      scratch_.cells[cell_of(id)] += weight;
      total += weight;
    }
    uint64_t wanted = top_p_sum(total, rule_.top_p);
    const std::span<Candidate> candidates = in_cell(cell_of_border(kPowerCells, wanted), cell_of);
    std::sort(candidates.begin(), candidates.end(), is_larger);
    uint64_t sum = 0;
    for (const Candidate& candidate : candidates) {
      sum += weight_of(scratch_.powers[candidate.id]);
      if (sum < wanted) continue;
      keep_down_to(candidate);
      return;
    }
    throw ContractViolation("choose: the weights do not reach their own share");
  }

  const ChoiceRule& rule_;
  const float* logits_;
  const int vocab_;
  const Scratch& scratch_;
  bool has_last_ = false;
  Candidate last_{};  // of those that stay, the last in the order of the filters
};

int32_t choose_row(const ChooseArgs& args, int row, const Primitives& isa, const Scratch& scratch) {
  const size_t vocab = static_cast<size_t>(args.vocab);
  const int32_t sequence = args.places.sequence[args.row_list[row]];
  const ChoiceRule& rule = args.rules[sequence];
  const bool has_marks = rule.marks != 0;
  const uint16_t* marks = has_marks ? args.marks + static_cast<size_t>(sequence) * vocab : nullptr;
  const LogitBias* biases =
      has_marks ? args.biases + static_cast<ptrdiff_t>(sequence) * kMaxBiases : nullptr;
  const float* logits = args.logits + static_cast<size_t>(row) * vocab;
  if (has_marks) {
    std::copy_n(logits, vocab, scratch.adjusted);
    for_marked(marks, args.vocab, [&](int id, uint32_t mark) {
      scratch.adjusted[id] = adjusted_logit(logits[id], mark, rule, biases, id);
    });
    logits = scratch.adjusted;
  }
  const float largest = isa.largest(logits, args.vocab);
  if (largest == -std::numeric_limits<float>::infinity()) return -1;
  if (rule.samples == 0) {
    return static_cast<int32_t>(std::find(logits, logits + vocab, largest) - logits);
  }
  Sampler sampler(isa, rule, logits, args.vocab, largest, scratch);
  if (has_marks) {
    for_marked(marks, args.vocab, [&](int id, uint32_t mark) {
      if ((mark & kMarkBanned) != 0) sampler.exclude(id);
    });
  }
  return sampler.draw(args.places.position[args.row_list[row]] + 1);
}

void logprobs_row(const LogprobArgs& args, int row, const Primitives& isa, const Scratch& scratch) {
  const float* logits = args.logits + static_cast<size_t>(row) * static_cast<size_t>(args.vocab);
  const float largest = isa.largest(logits, args.vocab);
  isa.powers(logits, largest, 1.0f, args.vocab, scratch.powers);
  uint64_t sum = 0;
  for (int id = 0; id < args.vocab; ++id) sum += weight_of(scratch.powers[id]);
  args.sums[row] = {sum, largest, args.ids[row] < 0 ? 0.0f : logits[args.ids[row]]};
  if (args.n_top == 0) return;

  // A heap of the largest so far, with the smallest of them at its front.
  Candidate* const heap = scratch.candidates;
  Candidate* const end = heap + args.n_top;
  for (int id = 0; id < args.vocab; ++id) {
    const Candidate candidate{logits[id], id};
    if (id < args.n_top) {
      heap[id] = candidate;
      if (id + 1 == args.n_top) std::make_heap(heap, end, is_larger);
    } else if (is_larger(candidate, *heap)) {
      std::pop_heap(heap, end, is_larger);
      end[-1] = candidate;
      std::push_heap(heap, end, is_larger);
    }
  }
  LogprobLogit* top = args.top + static_cast<ptrdiff_t>(row) * args.n_top;
  for (int i = 0; i < args.n_top; ++i) top[i] = {heap[i].id, heap[i].logit};
}

}  // namespace

void choose(const ChooseArgs& args, Pool& pool) {
  pool.for_each(args.rows, 1, [&](int begin, int end, int thread) {
    const Scratch scratch = Scratch::take(pool, thread, static_cast<size_t>(args.vocab));
    for (int row = begin; row < end; ++row) {
      args.ids[row] = choose_row(args, row, pool.isa(), scratch);
    }
  });
}

void logprobs(const LogprobArgs& args, Pool& pool) {
  pool.for_each(args.rows, 1, [&](int begin, int end, int thread) {
    const Scratch scratch = Scratch::take(pool, thread, static_cast<size_t>(args.vocab));
    for (int row = begin; row < end; ++row) logprobs_row(args, row, pool.isa(), scratch);
  });
}

}  // namespace edgellm::cpu
