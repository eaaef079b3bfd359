// build_certified_head and certified_head: the exact arg-max of the head from its int8 codes.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/certified_head.h"
#include "kernels/cpu/carver.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/rows.h"

namespace edgellm::cpu {
namespace {

// Rows of the head that an item of work has: as in the full head.
constexpr int kRowsPerItem = 64;

CertifiedRow certify_row(const Primitives& isa, const DenseMatrix& w, int i, int8_t* codes,
                         size_t pitch) {
  float amax = 0.0f;
  const bool finite = isa.row_amax(w, i, &amax);
  if (!finite || amax == 0.0f) {
    std::fill_n(codes, pitch, int8_t{0});
    return finite ? CertifiedRow{} : unbounded_row();
  }
  // Scaled by a power of two, so that float does for the squares.
  const StepScale scale = step_scale(amax);
  const float scaled_amax = scale.scaled(amax);
  const RowCoding coding{scale.first, scale.second, 127.0f / scaled_amax, scaled_amax / 127.0f};
  const RowSquares squares = isa.code_row(w, i, coding, codes);
  std::fill(codes + w.cols, codes + pitch, int8_t{0});
  const double unit = 1.0 / (static_cast<double>(scale.first) * static_cast<double>(scale.second));
  const auto norm = [&](float sum) { return unit * static_cast<double>(norm_bound(sum, w.cols)); };
  // A subnormal scale is rounded once more: 2^-150 in every code.
  constexpr double kScaleRounding = 0x1p-135;
  return certified_row(static_cast<float>(unit * static_cast<double>(coding.scale)),
                       norm(squares.errors) + kScaleRounding,
                       static_cast<double>(coding.scale) * norm(squares.codes) + kScaleRounding,
                       norm(squares.values));
}

// The steps of `normed` [n] into steps [pitch], and what the bounds need of it.
HiddenBound make_steps(const float* normed, int n, int16_t* steps, size_t pitch) {
  float amax = 0.0f;
  bool finite = true;
  for (int i = 0; i < n; ++i) {
    finite = finite && std::fabs(normed[i]) <= FLT_MAX;
    amax = std::max(amax, std::fabs(normed[i]));
  }
  std::fill_n(steps, pitch, int16_t{0});
  const StepScale scale = step_scale(finite ? amax : 0.0f);
  float squares = 0.0f;
  float deltas = 0.0f;
  for (int i = 0; finite && i < n; ++i) {
    const float scaled = scale.scaled(normed[i]);
    const float step = step_of(scaled);
    steps[i] = static_cast<int16_t>(step);
    squares += scaled * scaled;
    deltas += (scaled - step) * (scaled - step);
  }
  return hidden_bound(finite, scale, n, squares, deltas);
}

// What the parallel loops leave behind.
struct Scratch {
  int16_t* steps = nullptr;       // [rows, pitch]
  HiddenBound* hidden = nullptr;  // [rows]
  uint32_t* lower = nullptr;      // [threads, rows] ordered_bits() of the best lower bound
  uint64_t* best = nullptr;       // [threads, rows] logit_key() of the best logit
  int32_t* rescored = nullptr;    // [threads, rows]

  static Scratch take(Pool& pool, size_t rows, size_t pitch) {
    const auto place = [&](Carver carver, Scratch& scratch) {
      const size_t cells = rows * static_cast<size_t>(pool.threads());
      scratch.steps = carver.take<int16_t>(rows * pitch);
      scratch.hidden = carver.take<HiddenBound>(rows);
      scratch.lower = carver.take<uint32_t>(cells);
      scratch.best = carver.take<uint64_t>(cells);
      scratch.rescored = carver.take<int32_t>(cells);
      return carver.used();
    };
    Scratch scratch;
    const size_t bytes = place(Carver(), scratch);
    place(Carver(pool.shared_scratch(bytes)), scratch);
    std::fill_n(scratch.lower, rows * static_cast<size_t>(pool.threads()), 0u);
    std::fill_n(scratch.best, rows * static_cast<size_t>(pool.threads()), uint64_t{0});
    std::fill_n(scratch.rescored, rows * static_cast<size_t>(pool.threads()), 0);
    return scratch;
  }
};

bool is_banned(const HeadArgs& args, int id) {
  return std::find(args.banned, args.banned + args.n_banned, id) != args.banned + args.n_banned;
}

}  // namespace

void build_certified_head(const DenseMatrix& w, int8_t* codes, CertifiedRow* row_bounds,
                          Pool& pool) {
  const size_t pitch = CertifiedHead::pitch_of(w.cols);
  pool.for_each(w.rows, kRowsPerItem, [&](int begin, int end, int) {
    for (int v = begin; v < end; ++v) {
      row_bounds[v] = certify_row(pool.isa(), w, v, codes + static_cast<size_t>(v) * pitch, pitch);
    }
  });
}

void certified_head(const CertifiedHeadArgs& args, Pool& pool) {
  const HeadArgs& head = args.head;
  const Primitives& isa = pool.isa();
  const int dim = head.w.cols;
  const int vocab = head.w.rows;
  const size_t pitch = args.certified.pitch();
  const Scratch scratch = Scratch::take(pool, static_cast<size_t>(head.rows), pitch);

  pool.for_each(head.rows, 1, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      float* normed = head.normed + at(row, dim);
      isa.rms_norm(head.x + at(head.row_list[row], dim), head.gain, head.eps, dim, normed);
      scratch.hidden[row] =
          make_steps(normed, dim, scratch.steps + static_cast<size_t>(row) * pitch, pitch);
    }
  });

  // Bounds of every logit.
  const int items = (vocab + kRowsPerItem - 1) / kRowsPerItem;
  pool.for_each(items, 1, [&](int begin, int end, int thread) {
    for (int item = begin; item < end; ++item) {
      const int first = item * kRowsPerItem;
      const int count = std::min(kRowsPerItem, vocab - first);
      // Each becomes the bound, in its place.
      isa.certified_products(args.certified, first, first + count, scratch.steps, head.rows,
                             head.logits + first, static_cast<size_t>(vocab));
      for (int row = 0; row < head.rows; ++row) {
        float* upper = head.logits + at(row, vocab) + first;
        uint32_t& best = scratch.lower[at(thread, head.rows) + static_cast<size_t>(row)];
        float best_lower = from_ordered_bits(best);
        const HiddenBound hidden = scratch.hidden[row];
        for (int i = 0; i < count; ++i) {
          const LogitBounds bounds =
              logit_bounds(upper[i], args.certified.row_bounds[first + i], hidden);
          upper[i] = bounds.upper;
          // False where there is no bound (NaN).
          if (bounds.lower > best_lower && !is_banned(head, first + i)) best_lower = bounds.lower;
        }
        if (best_lower > -INFINITY) best = ordered_bits(best_lower);
      }
    }
  });
  for (int row = 0; row < head.rows; ++row) {
    uint32_t& best = scratch.lower[row];
    for (int thread = 1; thread < pool.threads(); ++thread) {
      best = std::max(best, scratch.lower[at(thread, head.rows) + static_cast<size_t>(row)]);
    }
  }

  // The rows that may hold the largest logit.
  pool.for_each(items, 16, [&](int begin, int end, int thread) {
    const int last = std::min(end * kRowsPerItem, vocab);
    for (int row = 0; row < head.rows; ++row) {
      const float lower = from_ordered_bits(scratch.lower[row]);
      const float* upper = head.logits + at(row, vocab);
      const size_t cell = at(thread, head.rows) + static_cast<size_t>(row);
      for (int v = begin * kRowsPerItem; v < last; ++v) {
        if (upper[v] < lower) continue;  // false also where there is no bound (NaN)
        float logit = 0.0f;
        if (!isa.dense_rows(head.w, v, v + 1, head.normed + at(row, dim), 1, &logit, 1)) {
          int32_t none = 0;
          std::atomic_ref<int32_t>(*head.fault)
              .compare_exchange_strong(none, head.layers + 1, std::memory_order_relaxed);
        }
        ++scratch.rescored[cell];
        if (!is_banned(head, v)) {
          scratch.best[cell] = std::max(scratch.best[cell], logit_key(logit, v));
        }
      }
    }
  });
  for (int row = 0; row < head.rows; ++row) {
    uint64_t best = 0;
    int32_t rescored = 0;
    for (int thread = 0; thread < pool.threads(); ++thread) {
      const size_t cell = at(thread, head.rows) + static_cast<size_t>(row);
      best = std::max(best, scratch.best[cell]);
      rescored += scratch.rescored[cell];
    }
    head.argmax[row] = id_of_key(best);
    args.rescored[row] = rescored;
  }
}

}  // namespace edgellm::cpu
