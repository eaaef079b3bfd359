// The ops but attention: how the work is shared out. The inner loops are in simd.inc and the files
// that include it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

#include "base/error.h"
#include "kernels/canonical.h"
#include "kernels/cpu/carver.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/rows.h"

namespace edgellm::cpu {
namespace {

// The rows of an op with ternary products, coded, in shared scratch: once, or once for each product
// where these have gains of their own.
class CodedRows {
 public:
  static constexpr size_t kMostGains = 3;  // q, k and v

  // y [rows, cols], through the folded norm where a gain is not null.
  CodedRows(Pool& pool, Activations activations, const float* y,
            std::initializer_list<const float*> gains, float eps, int cols, int rows,
            int32_t* fault, int layer)
      : isa_(pool.isa()), activations_(activations), cols_(cols), codings_(gains.size()) {
    require(codings_ >= 1 && codings_ <= kMostGains, "room for a coding with each gain");
    std::copy(gains.begin(), gains.end(), gains_.begin());
    Carver counted;
    place(counted, rows);
    Carver carver(pool.shared_scratch(counted.used()));
    place(carver, rows);
    pool.for_each(rows, 1, [&](int begin, int end, int) {
      for (int row = begin; row < end; ++row) {
        if (!code(y + at(row, cols), eps, row)) set_fault(fault, layer + 1);
      }
    });
  }

  // Primitives::ternary_rows or group_rows, of the rows with gain number `which`; of the only one
  // where there is one.
  void multiply(int which, const TernaryMatrix& w, int i_begin, int i_end, int t_begin, int t_end,
                float* out, size_t out_stride) const {
    const size_t coding = codings_ == 1 ? 0 : static_cast<size_t>(which);
    if (activations_ == Activations::kInt8Row) {
      isa_.ternary_rows(w, i_begin, i_end, int8_[coding], t_begin, t_end, out, out_stride);
    } else {
      isa_.group_rows(w, i_begin, i_end, int16_[coding], t_begin, t_end, out, out_stride);
    }
  }

 private:
  bool code(const float* y, float eps, int row) const {
    bool finite = true;
    for (size_t coding = 0; coding < codings_; ++coding) {
      const float* gain = gains_[coding];
      const bool is_finite = activations_ == Activations::kInt8Row
                                 ? isa_.quantise(y, gain, eps, cols_, int8_[coding], row)
                                 : isa_.code_groups(y, gain, eps, cols_, int16_[coding], row);
      finite = finite && is_finite;
    }
    return finite;
  }

  void place(Carver& carver, int n) {
    for (size_t coding = 0; coding < codings_; ++coding) {
      if (activations_ == Activations::kInt8Row) {
        place(carver, static_cast<size_t>(n), int8_[coding]);
      } else {
        place(carver, static_cast<size_t>(n), int16_[coding]);
      }
    }
  }
  void place(Carver& carver, size_t rows, QuantisedRows& coded) const {
    coded.stride = quantised_stride(isa_, cols_);
    coded.codes = carver.take<int8_t>(rows * coded.stride);
    coded.sum = carver.take<int32_t>(rows);
    coded.s = carver.take<float>(rows);
    coded.r = carver.take<float>(rows);
  }
  void place(Carver& carver, size_t rows, GroupedRows& coded) const {
    coded.stride = quantised_stride(isa_, cols_);
    coded.groups = group_count(static_cast<int>(coded.stride));
    const size_t groups = rows * static_cast<size_t>(coded.groups);
    coded.digits = carver.take<int8_t>(2 * rows * coded.stride);
    coded.sum = carver.take<int32_t>(groups);
    coded.unit = carver.take<float>(groups);
    coded.r = carver.take<float>(rows);
  }

  const Primitives& isa_;
  Activations activations_;
  int cols_;
  size_t codings_;
  std::array<const float*, kMostGains> gains_{};
  std::array<QuantisedRows, kMostGains> int8_;
  std::array<GroupedRows, kMostGains> int16_;
};

// How a product of w_rows weight rows with `rows` activation rows is cut into items.
struct Tiling {
  static constexpr int kLeastRows = 8;   // of an item: less is short against taking it
  static constexpr int kMostRows = 128;  // and what its results on the stack have room for
  static constexpr int kMostTiles = 4;   // of a thread, unless the most rows make more

  int w_tile;  // weight rows of an item, a multiple of 4
  int w_tiles;
  int t_tile;  // activation rows of an item
  int t_tiles;

  Tiling(int w_rows, int rows, int threads) {
    // Few activation rows: the weights are read once. Every thread should get as many weight rows;
    // with some tiles each, threads that are free can help one that is held up by what the machine
    // does besides. Many: an item's activations should stay in the L2 cache.
    t_tile = std::min(rows, kMaxTokenTile);
    t_tiles = (rows + t_tile - 1) / t_tile;
    w_tile = kMostRows;
    const int unit = rows < 16 ? 4 : 32;  // weight rows that inner loops take together
    int64_t least_load = INT64_MAX;  // weight rows of the thread that has the most, for each t_tile
    for (int tiles = kMostTiles; tiles >= 1; --tiles) {
      const int share = (w_rows + tiles * threads - 1) / (tiles * threads);
      const int tile = std::clamp((share + unit - 1) / unit * unit, kLeastRows, kMostRows);
      const int64_t n = static_cast<int64_t>((w_rows + tile - 1) / tile) * t_tiles;
      const int64_t load = (n + threads - 1) / threads * tile;
      if (load < least_load) {
        least_load = load;
        w_tile = tile;
      }
    }
    w_tiles = (w_rows + w_tile - 1) / w_tile;
  }
  int items() const { return w_tiles * t_tiles; }
};

struct Tile {
  int w_begin, w_end, t_begin, t_end;

  Tile(const Tiling& tiling, int item, int w_rows, int rows) {
    w_begin = item % tiling.w_tiles * tiling.w_tile;
    w_end = std::min(w_begin + tiling.w_tile, w_rows);
    t_begin = item / tiling.w_tiles * tiling.t_tile;
    t_end = std::min(t_begin + tiling.t_tile, rows);
  }
  int width() const { return w_end - w_begin; }
};

void project(const ProjectArgs& args, Pool& pool) {
  const int dim = args.w.rows;
  const CodedRows coded(pool, args.activations, args.y, {args.gain}, args.eps, args.w.cols,
                        args.rows, args.fault, args.layer);
  const Tiling tiling(dim, args.rows, pool.threads());
  pool.for_each(tiling.items(), 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const Tile tile(tiling, item, dim, args.rows);
      float products[128 * kMaxTokenTile];
      coded.multiply(0, args.w, tile.w_begin, tile.w_end, tile.t_begin, tile.t_end, products,
                     static_cast<size_t>(tile.width()));
      for (int t = tile.t_begin; t < tile.t_end; ++t) {
        if (!pool.isa().add(args.x + at(t, dim, tile.w_begin),
                            products + at(t - tile.t_begin, tile.width()), tile.width())) {
          set_fault(args.fault, args.layer + 1);
        }
      }
    }
  });
}

// RMSNorm of the heads in `width` values.
void norm_heads(const Primitives& isa, float* values, int width, const float* gain,
                const QkvArgs& args) {
  for (int begin = 0; begin < width; begin += args.head_dim) {
    isa.rms_norm(values + begin, gain, args.eps, args.head_dim, values + begin);
  }
}

// A row of a ternary table: scale * code.
void embed_ternary(const TernaryMatrix& table, int id, float* x) {
  const uint8_t* codes = table.codes + at(id, (table.cols + 3) / 4);
  for (int i = 0; i < table.cols; ++i) {
    const float scale = scale_of(table, id, i / kScaleGroup);
    const int bits = codes[i / 4] >> (2 * (i % 4)) & 3;
    x[i] = bits == 0 ? 0.0f : bits == 1 ? scale : -scale;
  }
}

// The logits of the rows of `normed`, of ids i_begin .. i_end - 1.
bool ternary_logits(const HeadArgs& args, const CodedRows& coded, int i_begin, int i_end) {
  const int vocab = args.w.rows;
  bool finite = true;
  for (int t = 0; t < args.rows; t += kMaxTokenTile) {
    const int t_end = std::min(t + kMaxTokenTile, args.rows);
    coded.multiply(0, args.ternary, i_begin, i_end, t, t_end, args.logits + at(t, vocab, i_begin),
                   static_cast<size_t>(vocab));
    for (int row = t; row < t_end; ++row) {
      for (int i = i_begin; i < i_end; ++i) {
        finite = finite && std::isfinite(args.logits[at(row, vocab, i)]);
      }
    }
  }
  return finite;
}

}  // namespace

size_t quantised_stride(const Primitives& isa, int cols) {
  const int group = 4 * isa.plane_bytes;
  return static_cast<size_t>((cols + group - 1) / group) * static_cast<size_t>(group);
}

void embed(const EmbedArgs& args, Pool& pool) {
  const int dim = args.table.cols;
  pool.for_each(args.rows, 8, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      if (args.table.data == nullptr) {
        embed_ternary(args.ternary, args.ids[row], args.x + at(row, dim));
        continue;
      }
      for (int i = 0; i < dim; ++i) {
        args.x[at(row, dim, i)] =
            widen(args.table.data, args.table.type, at(args.ids[row], dim, i));
      }
    }
  });
}

void norm(const NormArgs& args, Pool& pool) {
  pool.for_each(args.rows, 4, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      pool.isa().rms_norm(args.x + at(row, args.dim), args.gain, args.eps, args.dim,
                          args.normed + at(row, args.dim));
    }
  });
}

void qkv(const QkvArgs& args, Pool& pool) {
  const TernaryMatrix* matrices[3] = {&args.q, &args.k, &args.v};
  float* products[3] = {args.q_out, args.k_out, args.v_out};
  const auto code = [&](std::initializer_list<const float*> gains) {
    return CodedRows(pool, args.activations, args.x, gains, args.eps, args.dim, args.rows,
                     args.fault, args.layer);
  };
  const auto gain_or = [&](const float* own) { return own != nullptr ? own : args.gain; };
  const bool has_own = args.k_input_gain != nullptr || args.v_input_gain != nullptr;
  const CodedRows coded =
      has_own ? code({args.gain, gain_or(args.k_input_gain), gain_or(args.v_input_gain)})
              : code({args.gain});

  // The rows of q, k and v as if they were of one matrix, so that every thread gets as many.
  const int all_rows = args.q.rows + args.k.rows + args.v.rows;
  const Tiling tiling(all_rows, args.rows, pool.threads());
  pool.for_each(tiling.items(), 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const Tile tile(tiling, item, all_rows, args.rows);
      int first = 0;  // of these rows: that of matrix `which`
      for (int which = 0; which < 3; ++which) {
        const int width = matrices[which]->rows;
        const int w_begin = std::max(tile.w_begin - first, 0);
        const int w_end = std::min(tile.w_end - first, width);
        first += width;
        if (w_begin >= w_end) continue;
        coded.multiply(which, *matrices[which], w_begin, w_end, tile.t_begin, tile.t_end,
                       products[which] + at(tile.t_begin, width, w_begin),
                       static_cast<size_t>(width));
      }
    }
  });

  const int half = args.head_dim / 2;
  pool.for_each(args.rows, 4, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      if (args.q_gain != nullptr) {
        norm_heads(pool.isa(), args.q_out + at(row, args.q.rows), args.q.rows, args.q_gain, args);
      }
      if (args.k_gain != nullptr) {
        norm_heads(pool.isa(), args.k_out + at(row, args.k.rows), args.k.rows, args.k_gain, args);
      }
      const float* cosine = args.rope_cos + at(args.positions[row], half);
      const float* sine = args.rope_sin + at(args.positions[row], half);
      rotate(args.q_out + at(row, args.q.rows), args.q.rows / args.head_dim, args.head_dim, cosine,
             sine);
      rotate(args.k_out + at(row, args.k.rows), args.k.rows / args.head_dim, args.head_dim, cosine,
             sine);
    }
  });
}

void attn_out(const ProjectArgs& args, Pool& pool) { project(args, pool); }

void ffn_up(const FfnUpArgs& args, Pool& pool) {
  const int dim = args.gate.cols;
  const int ffn = args.gate.rows;
  const auto code = [&](std::initializer_list<const float*> gains) {
    return CodedRows(pool, args.activations, args.x, gains, args.eps, dim, args.rows, args.fault,
                     args.layer);
  };
  const CodedRows coded =
      args.up_gain != nullptr ? code({args.gain, args.up_gain}) : code({args.gain});
  const Tiling tiling(ffn, args.rows, pool.threads());
  pool.for_each(tiling.items(), 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const Tile tile(tiling, item, ffn, args.rows);
      const size_t stride = static_cast<size_t>(tile.width());
      float gate[128 * kMaxTokenTile];
      float up[128 * kMaxTokenTile];
      coded.multiply(0, args.gate, tile.w_begin, tile.w_end, tile.t_begin, tile.t_end, gate,
                     stride);
      coded.multiply(1, args.up, tile.w_begin, tile.w_end, tile.t_begin, tile.t_end, up, stride);
      for (int t = tile.t_begin; t < tile.t_end; ++t) {
        const size_t from = at(t - tile.t_begin, tile.width());
        pool.isa().gate(args.act, gate + from, up + from, tile.width(),
                        args.u + at(t, ffn, tile.w_begin));
      }
    }
  });
}

void ffn_down(const ProjectArgs& args, Pool& pool) { project(args, pool); }

void head(const HeadArgs& args, Pool& pool) {
  const int dim = args.w.cols;
  const int vocab = args.w.rows;
  pool.for_each(args.rows, 1, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      pool.isa().rms_norm(args.x + at(args.row_list[row], dim), args.gain, args.eps, dim,
                          args.normed + at(row, dim));
    }
  });
  if (vocab == 0) return;           // only the norm is wanted
  constexpr int kRowsPerItem = 64;  // a few hundred kB of bf16: long against the hand-over
  const auto for_each_item = [&](const auto& make_logits) {
    pool.for_each((vocab + kRowsPerItem - 1) / kRowsPerItem, 1, [&](int begin, int end, int) {
      if (!make_logits(begin * kRowsPerItem, std::min(end * kRowsPerItem, vocab))) {
        set_fault(args.fault, args.layers + 1);
      }
    });
  };
  if (args.w.data != nullptr) {
    for_each_item([&](int i_begin, int i_end) {
      return pool.isa().dense_rows(args.w, i_begin, i_end, args.normed, args.rows,
                                   args.logits + i_begin, static_cast<size_t>(vocab));
    });
  } else {
    const CodedRows coded(pool, Activations::kInt16Group, args.normed, {nullptr}, 0.0f, dim,
                          args.rows, args.fault, args.layers);
    for_each_item(
        [&](int i_begin, int i_end) { return ternary_logits(args, coded, i_begin, i_end); });
  }
  if (args.argmax == nullptr) return;
  pool.for_each(args.rows, 1, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      const float* logits = args.logits + at(row, vocab);
      const int32_t* banned_end = args.banned + args.n_banned;
      int best = -1;
      for (int v = 0; v < vocab; ++v) {
        if (best >= 0 && !(logits[v] > logits[best])) continue;
        if (std::find(args.banned, banned_end, v) == banned_end) best = v;
      }
      args.argmax[row] = best;
    }
  });
}

}  // namespace edgellm::cpu
