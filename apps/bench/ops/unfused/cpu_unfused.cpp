#include "apps/bench/ops/unfused/cpu_unfused.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rope.h"

namespace edgellm::bench {
namespace {

constexpr int kWeightRows = 64;  // of an item of a product

size_t at(int row, int width, int column = 0) {
  return static_cast<size_t>(row) * static_cast<size_t>(width) + static_cast<size_t>(column);
}

}  // namespace

CpuUnfused::CpuUnfused(cpu::Pool& pool, int rows, int widest) : pool_(pool) {
  const auto n_rows = static_cast<size_t>(rows);
  normed_.resize(at(rows, widest));
  rms_.resize(n_rows);
  codes_.resize(n_rows * cpu::quantised_stride(pool.isa(), widest));
  sum_.resize(n_rows);
  s_.resize(n_rows);
  r_.resize(n_rows);
  first_.resize(at(rows, widest));
  second_.resize(at(rows, widest));
  quantised_.codes = codes_.data();
  quantised_.sum = sum_.data();
  quantised_.s = s_.data();
  quantised_.r = r_.data();
}

void CpuUnfused::norm(const float* x, const float* gain, float eps, int cols, int rows) {
  pool_.for_each(rows, 1, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      const float* const from = x + at(row, cols);
      float* const to = normed_.data() + at(row, cols);
      // The canonical sum of squares is a product of the row with itself.
      float squares = 0;
      pool_.isa().dense_rows({from, DenseType::kF32, 1, cols}, 0, 1, from, 1, &squares, 1);
      rms_[static_cast<size_t>(row)] = 1.0f / std::sqrt(squares / static_cast<float>(cols) + eps);
      for (int i = 0; i < cols; ++i) to[i] = from[i] * gain[i];
    }
  });
}

void CpuUnfused::quantise(const float* y, int cols, int rows) {
  quantised_.stride = cpu::quantised_stride(pool_.isa(), cols);
  pool_.for_each(rows, 1, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      pool_.isa().quantise(y + at(row, cols), nullptr, 0, cols, quantised_, row);
    }
  });
}

void CpuUnfused::quantise_normed(const float* x, const float* gain, float eps, int cols, int rows) {
  if (gain == nullptr) {
    quantise(x, cols, rows);
    return;
  }
  norm(x, gain, eps, cols, rows);
  quantise(normed_.data(), cols, rows);
  std::copy_n(rms_.begin(), rows, r_.begin());
}

void CpuUnfused::product(const TernaryMatrix& w, int rows, float* out) {
  const int w_tiles = (w.rows + kWeightRows - 1) / kWeightRows;
  const int t_tiles = (rows + cpu::kMaxTokenTile - 1) / cpu::kMaxTokenTile;
  pool_.for_each(w_tiles * t_tiles, 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const int i = item % w_tiles * kWeightRows;
      const int t = item / w_tiles * cpu::kMaxTokenTile;
      pool_.isa().ternary_rows(w, i, std::min(i + kWeightRows, w.rows), quantised_, t,
                               std::min(t + cpu::kMaxTokenTile, rows), out + at(t, w.rows, i),
                               static_cast<size_t>(w.rows));
    }
  });
}

void CpuUnfused::qkv(const QkvArgs& args) {
  quantise_normed(args.x, args.gain, args.eps, args.dim, args.rows);
  product(args.q, args.rows, args.q_out);
  product(args.k, args.rows, args.k_out);
  product(args.v, args.rows, args.v_out);
  const int half = args.head_dim / 2;
  const auto rotate_all = [&](float* heads, int n_heads) {
    pool_.for_each(args.rows, 4, [&](int begin, int end, int) {
      for (int row = begin; row < end; ++row) {
        const int position = args.positions[row];
        cpu::rotate(heads + at(row, n_heads * args.head_dim), n_heads, args.head_dim,
                    args.rope_cos + at(position, half), args.rope_sin + at(position, half));
      }
    });
  };
  rotate_all(args.q_out, args.q.rows / args.head_dim);
  rotate_all(args.k_out, args.k.rows / args.head_dim);
}

void CpuUnfused::project(const ProjectArgs& args) {
  quantise_normed(args.y, args.gain, args.eps, args.w.cols, args.rows);
  product(args.w, args.rows, first_.data());
  pool_.for_each(args.rows, 1, [&](int begin, int end, int) {
    pool_.isa().add(args.x + at(begin, args.w.rows), first_.data() + at(begin, args.w.rows),
                    (end - begin) * args.w.rows);
  });
}

void CpuUnfused::ffn_up(const FfnUpArgs& args) {
  quantise_normed(args.x, args.gain, args.eps, args.gate.cols, args.rows);
  product(args.gate, args.rows, first_.data());
  product(args.up, args.rows, second_.data());
  const int ffn = args.gate.rows;
  pool_.for_each(args.rows, 1, [&](int begin, int end, int) {
    pool_.isa().gate(args.act, first_.data() + at(begin, ffn), second_.data() + at(begin, ffn),
                     (end - begin) * ffn, args.u + at(begin, ffn));
  });
}

}  // namespace edgellm::bench
