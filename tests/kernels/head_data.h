// Heads and hidden states that are hard on the certified head, and what it must hold for each.
#pragma once

#include "kernels/certified_head.h"
#include "tests/kernels/op_data.h"

namespace edgellm::test {

inline void set(DenseData& w, int row, int col, float value) {
  const size_t i =
      static_cast<size_t>(row) * static_cast<size_t>(w.matrix.cols) + static_cast<size_t>(col);
  if (w.matrix.type == DenseType::kF32) {
    std::memcpy(&w.bytes[4 * i], &value, 4);
    return;
  }
  // to_half() clamps; what is not finite stays so.
  const uint16_t half = w.matrix.type == DenseType::kBF16
                            ? static_cast<uint16_t>(float_to_bits(value) >> 16)
                        : std::isfinite(value) ? to_half(value)
                                               : uint16_t{0x7c00};
  std::memcpy(&w.bytes[2 * i], &half, 2);
}

inline float get(const DenseData& w, int row, int col) {
  return widen(
      w.matrix.data, w.matrix.type,
      static_cast<size_t>(row) * static_cast<size_t>(w.matrix.cols) + static_cast<size_t>(col));
}

// The value one unit in the last place further from zero, in the type of the matrix.
inline float next_value(DenseType type, float value) {
  return bits_to_float(float_to_bits(value) + (type == DenseType::kF32    ? 1u
                                               : type == DenseType::kBF16 ? 0x10000u
                                                                          : 0x2000u));
}

enum class HeadKind {
  kPlain,    // normal rows
  kTies,     // every second row is the one before, or that with one weight 1 ulp larger
  kExtreme,  // rows that are zero, tiny, subnormal, huge, or have one outlier
  kOutlier,  // one column that is a thousand times the others, the same in every row but its sign
  kCount
};

inline DenseData make_head(Random& random, int vocab, int dim, DenseType type, HeadKind kind) {
  DenseData w(random, vocab, dim, type);
  const float huge = type == DenseType::kF16 ? 6e4f : 1e30f;
  const float tiny = type == DenseType::kF16 ? 3e-7f : 1e-41f;
  const int column = random.below(dim);
  for (int v = 0; v < vocab; ++v) {
    switch (kind) {
      case HeadKind::kTies:
        if (v % 2 == 0) break;
        for (int c = 0; c < dim; ++c) set(w, v, c, get(w, v - 1, c));
        if (v % 4 == 1) set(w, v, column, next_value(type, get(w, v, column)));
        break;
      case HeadKind::kExtreme:
        for (int c = 0; c < dim; ++c) {
          const float value = get(w, v, c);
          if (v % 6 == 0) set(w, v, c, 0.0f);
          if (v % 6 == 1) set(w, v, c, value * tiny);
          if (v % 6 == 2) set(w, v, c, value * 1e-3f);
          if (v % 6 == 3) set(w, v, c, c == column ? 100.0f * value : value);
          if (v % 30 == 4) set(w, v, c, value * huge);
        }
        break;
      case HeadKind::kOutlier:
        set(w, v, column, v % 2 == 0 ? 1000.0f : -1000.0f);
        break;
      default:
        break;
    }
  }
  return w;
}

// Rows of x and gains that make hidden states of ordinary size, tiny, subnormal, or huge.
struct HiddenData {
  std::vector<float> x;
  std::vector<float> gain;

  HiddenData(Random& random, int rows, int dim, int size)
      : x(activation_rows(random, rows, dim)), gain(gains(random, dim)) {
    const float factor = size == 1 ? 1e-30f : size == 2 ? 1e-42f : size == 3 ? 1e25f : 1.0f;
    for (float& g : gain) g *= factor;
  }
};
inline constexpr int kHiddenSizes = 4;

// Where the certified bounds do not hold the logits of `h` = normed [dim]; empty where they do.
// code_of(row, column) is a code of `certified`, whose bounds are in host memory; steps are at most
// `most` in magnitude.
template <class CodeOf>
std::string check_bounds(const CertifiedHead& certified, const CodeOf& code_of, float most,
                         const float* h, const float* logits) {
  const int n = certified.cols;
  float amax = 0.0f;
  for (int i = 0; i < n; ++i) amax = std::max(amax, std::fabs(h[i]));
  const StepScale scale = step_scale(amax);
  std::vector<int64_t> steps;
  float squares = 0.0f;
  float deltas = 0.0f;
  for (int i = 0; i < n; ++i) {
    const float scaled = scale.scaled(h[i]);
    const float step = step_of(scaled, most);
    steps.push_back(static_cast<int64_t>(step));
    squares += scaled * scaled;
    deltas += (scaled - step) * (scaled - step);
  }
  const HiddenBound bound = hidden_bound(true, scale, n, squares, deltas);
  const double unit = 1.0 / (static_cast<double>(scale.first) * static_cast<double>(scale.second));
  for (int v = 0; v < certified.rows; ++v) {
    int64_t product = 0;
    for (int i = 0; i < n; ++i) product += code_of(v, i) * steps[static_cast<size_t>(i)];
    const LogitBounds b = logit_bounds(static_cast<float>(product), certified.row_bounds[v], bound);
    const double logit = static_cast<double>(logits[v]);
    const bool bounded = std::isfinite(b.lower) && std::isfinite(b.upper);
    if (!std::isfinite(logits[v]) ? bounded
                                  : bounded && !(static_cast<double>(b.lower) * unit <= logit &&
                                                 logit <= static_cast<double>(b.upper) * unit)) {
      return "row " + std::to_string(v) + ": logit " + std::to_string(logit / unit) +
             " is not within " + std::to_string(b.lower) + " .. " + std::to_string(b.upper);
    }
  }
  return "";
}

// A head op with its arrays on the host.
struct HeadRun {
  std::vector<float> normed;
  std::vector<float> logits;
  std::vector<int32_t> argmax;
  int32_t fault = 0;

  HeadRun(size_t rows, const DenseMatrix& w)
      : normed(rows * static_cast<size_t>(w.cols)),
        logits(rows * static_cast<size_t>(w.rows)),
        argmax(rows, -2) {}
};

}  // namespace edgellm::test
