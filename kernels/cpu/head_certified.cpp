// build_certified_head, certified_head and certified_choose: the largest logits of the head,
// exactly, from its codes (head_codes.h).
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <span>

#include "kernels/certified_head.h"
#include "kernels/choice.h"
#include "kernels/cpu/candidates.h"
#include "kernels/cpu/carver.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/fetch_ahead.h"
#include "kernels/cpu/head_codes.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/rows.h"
#include "kernels/integer_attention.h"

namespace edgellm::cpu {
namespace {

// Rows of the head that an item of work has: as in the full head.
constexpr int kRowsPerItem = 64;

// The codes of row i into codes [w.cols].
CertifiedRow certify_row(const Primitives& isa, const DenseMatrix& w, int i, int8_t* codes) {
  float amax = 0.0f;
  const bool finite = isa.row_amax(w, i, &amax);
  if (!finite || amax == 0.0f) {
    std::fill_n(codes, w.cols, int8_t{0});
    return finite ? CertifiedRow{} : unbounded_row();
  }
  // Scaled by a power of two, so that float does for the squares.
  const StepScale scale = step_scale(amax);
  const float scaled_amax = scale.scaled(amax);
  constexpr float kMost = kMaxHeadCode;
  const RowCoding coding{scale.first, scale.second, kMost / scaled_amax, scaled_amax / kMost};
  const RowSquares squares = isa.code_row(w, i, coding, codes);
  const double unit = 1.0 / (static_cast<double>(scale.first) * static_cast<double>(scale.second));
  const auto norm = [&](float sum) { return unit * static_cast<double>(norm_bound(sum, w.cols)); };
  // A subnormal scale is rounded once more: 2^-150 in every code.
  constexpr double kScaleRounding = 0x1p-135;
  return certified_row(static_cast<float>(unit * static_cast<double>(coding.scale)),
                       norm(squares.errors) + kScaleRounding,
                       static_cast<double>(coding.scale) * norm(squares.codes) + kScaleRounding,
                       norm(squares.values));
}

// The steps of `normed` [n] into row `row` of steps, with their scale, and what the bounds need.
HiddenBound make_steps(const float* normed, int n, const HeadSteps& steps, size_t pitch, int row,
                       StepScale* row_scale) {
  float amax = 0.0f;
  bool finite = true;
  for (int i = 0; i < n; ++i) {
    finite = finite && std::fabs(normed[i]) <= FLT_MAX;
    amax = std::max(amax, std::fabs(normed[i]));
  }
  int8_t* high = steps.digits + 2 * static_cast<size_t>(row) * pitch;
  int8_t* low = high + pitch;
  std::fill_n(high, 2 * pitch, int8_t{0});
  const StepScale scale = *row_scale = step_scale(finite ? amax : 0.0f);
  float squares = 0.0f;
  float deltas = 0.0f;
  int32_t sum = 0;
  for (int i = 0; finite && i < n; ++i) {
    const float scaled = scale.scaled(normed[i]);
    const float step = step_of(scaled, kMaxHeadStep);
    const Digits digits = digits_of(static_cast<int>(step));
    high[i] = static_cast<int8_t>(digits.high);
    low[i] = static_cast<int8_t>(digits.low);
    sum += static_cast<int>(step);
    squares += scaled * scaled;
    deltas += (scaled - step) * (scaled - step);
  }
  steps.sums[row] = sum;
  return hidden_bound(finite, scale, n, squares, deltas);
}

// How many neighbouring ids have one seed: few enough that the `keep` largest bounds of all ids are
// mostly of different groups.
int group_size(int vocab, int keep) {
  int size = kRowsPerItem;
  while (size > 8 && vocab / size < 16 * keep) size /= 2;
  return size;
}

// A logit below the result has less than the rule's weight if `logit` is one of the others: weights
// never rise with the largest logit, and never fall with their own.
float least_beside(float logit, const ChoiceRule& rule) {
  const double share = static_cast<double>(rule.min_weight) / static_cast<double>(kMostWeight);
  // A margin for the roundings of a weight, doubled until the weight itself says that it is enough.
  for (double margin = 1e-6;; margin *= 2) {
    const double fall = (margin - std::log(share)) / static_cast<double>(rule.inverse_temperature);
    const double least = static_cast<double>(logit) - fall;
    if (!(least >= -FLT_MAX)) return -INFINITY;  // nothing can be said, or `logit` is not finite
    const float rounded = static_cast<float>(least);
    if (logit_weight(rounded, logit, rule.inverse_temperature) < rule.min_weight) return rounded;
  }
}

// Whose largest logits are wanted: the arg-max of rows without rules.
struct ArgMaxRows {
  const HeadArgs& head;

  int keep(int /*row*/) const { return 1; }
  bool keeps_one(int /*row*/) const { return true; }
  float least_kept_beside(int /*row*/, float logit) const { return logit; }
  // Bounds of this id must not speak against others.
  bool is_apart(int /*row*/, int id) const {
    const int32_t* end = head.banned + head.n_banned;
    return std::find(head.banned, end, id) != end;
  }
  // Some of these ids are candidates whatever their bounds are.
  bool has_certain(int /*row*/, int /*begin*/, int /*end*/) const { return false; }
  bool is_certain(int /*row*/, int /*id*/) const { return false; }
};

// Those of rows with rules. The bounds say nothing of a logit that is adjusted later, so that ids
// with marks are all candidates, unless they are banned.
struct RuledRows {
  const ChooseArgs& choose;

  int32_t sequence(int row) const { return choose.places.sequence[choose.row_list[row]]; }
  const ChoiceRule& rule(int row) const { return choose.rules[sequence(row)]; }
  const uint16_t* marks(int row) const {
    return choose.marks +
           static_cast<ptrdiff_t>(sequence(row)) * static_cast<ptrdiff_t>(choose.vocab);
  }
  // A least weight is told from one logit.
  int keep(int row) const { return keeps_by_weight(rule(row)) ? 1 : most_kept(rule(row)); }
  bool keeps_one(int row) const { return most_kept(rule(row)) == 1; }
  float least_kept_beside(int row, float logit) const {
    return keeps_by_weight(rule(row)) ? least_beside(logit, rule(row)) : logit;
  }
  bool is_apart(int row, int id) const { return rule(row).marks != 0 && marks(row)[id] != 0; }
  bool has_certain(int row, int begin, int end) const {
    if (rule(row).marks == 0) return false;
    const uint16_t* of_row = marks(row);
    uint32_t any = 0;
    for (int id = begin; id < end; ++id) any |= of_row[id];
    return any != 0;
  }
  bool is_certain(int row, int id) const {
    return is_apart(row, id) && (marks(row)[id] & kMarkBanned) == 0;
  }
};

// An id of each group, the one with the largest lower bound.
struct Seed {
  float least;  // its logit is not less: that bound, or the logit; in units of t
  int32_t id;   // -1: none of the group has a bound
};

// What the parallel loops leave behind.
struct Scratch {
  HeadSteps steps{};                // [rows]
  StepScale* scale = nullptr;       // [rows] 1 / t
  HiddenBound* hidden = nullptr;    // [rows]
  Seed* seeds = nullptr;            // [rows, groups]
  float* most_upper = nullptr;      // [rows, items] the largest upper bound of an item
  float* least = nullptr;           // [rows] what the rows' largest logits reach
  int32_t* found = nullptr;         // [rows, items] candidates
  int32_t* count = nullptr;         // [rows] candidates
  Candidate* candidates = nullptr;  // [rows, vocab], in ascending order of ids

  static Scratch take(Pool& pool, size_t rows, size_t pitch, size_t vocab, size_t groups) {
    const auto place = [&](Carver carver, Scratch& scratch) {
      scratch.steps = {carver.take<int8_t>(2 * rows * pitch), carver.take<int32_t>(rows)};
      scratch.scale = carver.take<StepScale>(rows);
      scratch.hidden = carver.take<HiddenBound>(rows);
      scratch.seeds = carver.take<Seed>(rows * groups);
      const size_t items = (vocab + kRowsPerItem - 1) / kRowsPerItem;
      scratch.most_upper = carver.take<float>(rows * items);
      scratch.least = carver.take<float>(rows);
      scratch.found = carver.take<int32_t>(rows * items);
      scratch.count = carver.take<int32_t>(rows);
      scratch.candidates = carver.take<Candidate>(rows * vocab);
      return carver.used();
    };
    Scratch scratch;
    const size_t bytes = place(Carver(), scratch);
    place(Carver(pool.shared_scratch(bytes)), scratch);
    return scratch;
  }

  std::span<Candidate> of_row(int row, int vocab) const {
    return {candidates + at(row, vocab), static_cast<size_t>(count[row])};
  }
};

// The final norm of each row, its steps and what its bounds need.
void code_rows(const HeadArgs& head, size_t pitch, const Scratch& scratch, Pool& pool) {
  const int dim = head.w.cols;
  pool.for_each(head.rows, 1, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      float* normed = head.normed + at(row, dim);
      pool.isa().rms_norm(head.x + at(head.row_list[row], dim), head.gain, head.eps, dim, normed);
      scratch.hidden[row] = make_steps(normed, dim, scratch.steps, pitch, row, scratch.scale + row);
    }
  });
}

// Bounds of every logit: the upper ones in place of the logits, of the lower ones the seeds of
// groups of `group` ids.
template <class Rows>
void bound_logits(const HeadArgs& head, const CertifiedHead& certified, const Rows& of, int group,
                  const Scratch& scratch, Pool& pool) {
  const int vocab = head.w.rows;
  const int items = (vocab + kRowsPerItem - 1) / kRowsPerItem;
  const int groups = (vocab + group - 1) / group;
  pool.for_each(items, 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const int first = item * kRowsPerItem;
      const int count = std::min(kRowsPerItem, vocab - first);
      // Each becomes the bound, in its place.
      pool.isa().certified_products(certified, first, first + count, scratch.steps, head.rows,
                                    head.logits + first, static_cast<size_t>(vocab));
      for (int row = 0; row < head.rows; ++row) {
        float* upper = head.logits + at(row, vocab) + first;
        Seed* seed = scratch.seeds + at(row, groups) + first / group;
        float most = -INFINITY;
        const HiddenBound hidden = scratch.hidden[row];
        for (int of_group = 0; of_group < count; of_group += group) {
          *seed = {-INFINITY, -1};
          for (int i = of_group; i < std::min(of_group + group, count); ++i) {
            const LogitBounds bounds =
                logit_bounds(upper[i], certified.row_bounds[first + i], hidden);
            upper[i] = bounds.upper;
            // NaN: there is no bound.
            most = std::max(most, std::isnan(bounds.upper) ? INFINITY : bounds.upper);
            if (bounds.lower > seed->least && !of.is_apart(row, first + i)) {
              *seed = {bounds.lower, first + i};
            }
          }
          ++seed;
        }
        scratch.most_upper[at(row, items, item)] = most;
      }
    }
  });
}

// Rows of the head that are computed one by one lie anywhere in memory, so all of some are asked
// for before the first one is needed: this much of each. The processor itself goes on from there.
constexpr size_t kBytesAskedFor = 2048;
constexpr int kMostAskedFor = 64;
void ask_for_row(const DenseMatrix& w, int id) {
  const size_t row_bytes = static_cast<size_t>(w.cols) * (w.type == DenseType::kF32 ? 4 : 2);
  const std::byte* row =
      static_cast<const std::byte*>(w.data) + static_cast<size_t>(id) * row_bytes;
  for (size_t b = 0; b < std::min(row_bytes, kBytesAskedFor); b += 64) fetch_ahead(row + b);
}

// False: it is not finite.
bool compute_logit(const HeadArgs& head, int row, int id, float* logit, Pool& pool) {
  return pool.isa().dense_rows(head.w, id, id + 1, head.normed + at(row, head.w.cols), 1, logit, 1);
}

// The logits of the `keep` seeds of each row that have the largest bounds, which they move to the
// front, or what is kept beside them, in place of the bounds.
template <class Rows>
void compute_seeds(const HeadArgs& head, const Rows& of, int most, int groups,
                   const Scratch& scratch, Pool& pool) {
  const auto by_bound = [](const Seed& a, const Seed& b) { return a.least > b.least; };
  pool.for_each(head.rows, 1, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      Seed* seeds = scratch.seeds + at(row, groups);
      const int keep = of.keep(row);
      if (keep < groups) std::nth_element(seeds, seeds + (keep - 1), seeds + groups, by_bound);
      for (int i = 0; i < std::min(keep, std::min(groups, kMostAskedFor)); ++i) {
        if (seeds[i].id >= 0) ask_for_row(head.w, seeds[i].id);
      }
    }
  });
  pool.for_each(head.rows * most, 4, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) {
      const int row = i / most;
      if (i % most >= std::min(of.keep(row), groups)) continue;
      Seed& seed = scratch.seeds[at(row, groups, i % most)];
      if (seed.id < 0) continue;
      float logit = 0.0f;
      // Is a candidate, too: a logit that is not finite is found there.
      compute_logit(head, row, seed.id, &logit, pool);
      seed.least = scratch.scale[row].scaled(of.least_kept_beside(row, logit));
    }
  });
}

// What as many logits of the row reach as are kept.
float least_kept(const Seed* seeds, int groups, int keep) {
  if (keep > groups) return -INFINITY;
  float least = INFINITY;
  for (int i = 0; i < keep; ++i) least = std::min(least, seeds[i].least);
  return least;
}

// The ids of an item that may be among the row's largest, and those that are candidates whatever
// their bounds are. Returns how many.
template <class Rows>
int find_candidates(const HeadArgs& head, const Rows& of, int row, int first, bool may_be_large,
                    const Scratch& scratch) {
  const int last = std::min(first + kRowsPerItem, head.w.rows);
  const bool has_certain = of.has_certain(row, first, last);
  if (!may_be_large && !has_certain) return 0;
  const float* upper = head.logits + at(row, head.w.rows);
  Candidate* candidates = scratch.candidates + at(row, head.w.rows, first);
  const float least = scratch.least[row];
  int n = 0;
  for (int v = first; v < last; ++v) {
    // NaN compares as false: a row without a bound is computed.
    if (upper[v] < least && !(has_certain && of.is_certain(row, v))) continue;
    candidates[n++].id = v;
    ask_for_row(head.w, v);
  }
  return n;
}

// The logits of the `found` candidates of an item, which begins with row `first` of the head.
void compute_found(const HeadArgs& head, int row, int first, int found, const Scratch& scratch,
                   Pool& pool) {
  Candidate* candidates = scratch.candidates + at(row, head.w.rows, first);
  bool finite = true;
  if (found > kRowsPerItem / 4) {  // all in turn are quicker than so many one by one
    float logits[kRowsPerItem];
    const int last = std::min(first + kRowsPerItem, head.w.rows);
    finite = pool.isa().dense_rows(head.w, first, last, head.normed + at(row, head.w.cols), 1,
                                   logits, kRowsPerItem);
    for (int k = 0; k < found; ++k) candidates[k].logit = logits[candidates[k].id - first];
  } else {
    for (int k = 0; k < found; ++k) {
      finite = compute_logit(head, row, candidates[k].id, &candidates[k].logit, pool) && finite;
    }
  }
  if (!finite) set_fault(head.fault, head.layers + 1);
}

// All candidates.
template <class Rows>
void compute_candidates(const HeadArgs& head, const Rows& of, const Scratch& scratch, Pool& pool) {
  const int vocab = head.w.rows;
  const int items = (vocab + kRowsPerItem - 1) / kRowsPerItem;
  constexpr int kItemsAskedFor = 16;
  bool keep_one = true;
  for (int row = 0; row < head.rows; ++row) keep_one = keep_one && of.keeps_one(row);
  // An arg-max leaves a few candidates, which are not worth a hand-over.
  const int grain = keep_one ? items : kItemsAskedFor;
  pool.for_each(head.rows * items, grain, [&](int begin, int end, int) {
    for (int part = begin; part < end; part += kItemsAskedFor) {
      const int part_end = std::min(part + kItemsAskedFor, end);
      for (int i = part; i < part_end; ++i) {
        const int row = i / items;
        scratch.found[i] = find_candidates(head, of, row, i % items * kRowsPerItem,
                                           !(scratch.most_upper[i] < scratch.least[row]), scratch);
      }
      for (int i = part; i < part_end; ++i) {
        compute_found(head, i / items, i % items * kRowsPerItem, scratch.found[i], scratch, pool);
      }
    }
  });
  pool.for_each(head.rows, 1, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      Candidate* const candidates = scratch.candidates + at(row, vocab);
      int32_t n = 0;
      for (int item = 0; item < items; ++item) {
        const Candidate* from = candidates + item * kRowsPerItem;
        const int found = scratch.found[at(row, items, item)];
        for (int k = 0; k < found; ++k) candidates[n++] = from[k];
      }
      scratch.count[row] = n;
    }
  });
}

// The candidates of every row, with their logits.
template <class Rows>
Scratch certified_candidates(const HeadArgs& head, const CertifiedHead& certified, const Rows& of,
                             Pool& pool) {
  int most = 1;
  for (int row = 0; row < head.rows; ++row) most = std::max(most, of.keep(row));
  const int group = group_size(head.w.rows, most);
  const int groups = (head.w.rows + group - 1) / group;
  const Scratch scratch =
      Scratch::take(pool, static_cast<size_t>(head.rows), certified.pitch(),
                    static_cast<size_t>(head.w.rows), static_cast<size_t>(groups));
  code_rows(head, certified.pitch(), scratch, pool);
  bound_logits(head, certified, of, group, scratch, pool);
  compute_seeds(head, of, most, groups, scratch, pool);
  for (int row = 0; row < head.rows; ++row) {
    scratch.least[row] = least_kept(scratch.seeds + at(row, groups), groups, of.keep(row));
  }
  compute_candidates(head, of, scratch, pool);
  return scratch;
}

}  // namespace

void build_certified_head(const DenseMatrix& w, uint8_t* codes, CertifiedRow* row_bounds,
                          Pool& pool) {
  const size_t pitch = CertifiedHead::pitch_of(w.cols);
  const size_t row_bytes = head_row_bytes(w.cols);
  pool.for_each(w.rows, kRowsPerItem, [&](int begin, int end, int thread) {
    int8_t* row = reinterpret_cast<int8_t*>(pool.thread_scratch(thread, pitch));
    std::fill_n(row, pitch, int8_t{0});
    for (int v = begin; v < end; ++v) {
      row_bounds[v] = certify_row(pool.isa(), w, v, row);
      uint8_t* to = codes + static_cast<size_t>(v) * row_bytes;
      for (size_t c = 0; c < pitch; c += kHeadBlockColumns, to += kHeadBlockBytes) {
        pack_head_block(row + c, to);
      }
    }
  });
}

void certified_head(const CertifiedHeadArgs& args, Pool& pool) {
  const HeadArgs& head = args.head;
  const ArgMaxRows rows{head};
  const Scratch scratch = certified_candidates(head, args.certified, rows, pool);
  for (int row = 0; row < head.rows; ++row) {
    uint64_t best = 0;
    for (const Candidate& candidate : scratch.of_row(row, head.w.rows)) {
      if (rows.is_apart(row, candidate.id)) continue;
      best = std::max(best, logit_key(candidate.logit, candidate.id));
    }
    head.argmax[row] = id_of_key(best);
    args.rescored[row] = scratch.count[row];
  }
}

void certified_choose(const CertifiedChooseArgs& args, Pool& pool) {
  const HeadArgs& head = args.head;
  const Scratch scratch = certified_candidates(head, args.certified, RuledRows{args.choose}, pool);
  pool.for_each(head.rows, 1, [&](int begin, int end, int thread) {
    for (int row = begin; row < end; ++row) {
      args.rescored[row] = scratch.count[row];
      // A value that is not finite ends the run: no choice is defined.
      args.choose.ids[row] =
          *head.fault != 0
              ? -1
              : choose_among(args.choose, row, scratch.of_row(row, head.w.rows), pool, thread);
    }
  });
}

}  // namespace edgellm::cpu
