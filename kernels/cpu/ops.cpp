// The ops but attention: how the work is shared out. The inner loops are in simd.inc and the files
// that include it.
#include <algorithm>

#include "kernels/canonical.h"
#include "kernels/cpu/carver.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/rows.h"

namespace edgellm::cpu {
namespace {

QuantisedRows take_quantised(Carver& carver, const Primitives& isa, int rows, int cols) {
  QuantisedRows out;
  out.stride = quantised_stride(isa, cols);
  out.codes = carver.take<int8_t>(static_cast<size_t>(rows) * out.stride);
  out.sum = carver.take<int32_t>(static_cast<size_t>(rows));
  out.s = carver.take<float>(static_cast<size_t>(rows));
  out.r = carver.take<float>(static_cast<size_t>(rows));
  return out;
}

// The quantised rows of an op with a ternary product, in shared scratch.
QuantisedRows quantise_rows(Pool& pool, const float* y, const float* gain, float eps, int cols,
                            int rows, int32_t* fault, int layer) {
  Carver counted;
  take_quantised(counted, pool.isa(), rows, cols);
  Carver carver(pool.shared_scratch(counted.used()));
  const QuantisedRows out = take_quantised(carver, pool.isa(), rows, cols);
  pool.for_each(rows, 1, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      if (!pool.isa().quantise(y + at(row, cols), gain, eps, cols, out, row)) {
        set_fault(fault, layer + 1);
      }
    }
  });
  return out;
}

// How a product of w_rows weight rows with `rows` activation rows is cut into items.
struct Tiling {
  int w_tile;  // weight rows of an item, a multiple of 4
  int w_tiles;
  int t_tile;  // activation rows of an item
  int t_tiles;

  Tiling(int w_rows, int rows, int threads) {
    // Few activation rows: the weights are read once, and about four items a thread even out what
    // the machine does besides. Many: an item's activations should stay in the L2 cache.
    const int share = (w_rows + 4 * threads - 1) / (4 * threads);
    w_tile = std::clamp((share + 3) / 4 * 4, 16, 128);
    w_tiles = (w_rows + w_tile - 1) / w_tile;
    t_tile = std::min(rows, kMaxTokenTile);
    t_tiles = (rows + t_tile - 1) / t_tile;
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
  const QuantisedRows quantised = quantise_rows(pool, args.y, args.gain, args.eps, args.w.cols,
                                                args.rows, args.fault, args.layer);
  const Tiling tiling(dim, args.rows, pool.threads());
  pool.for_each(tiling.items(), 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const Tile tile(tiling, item, dim, args.rows);
      float products[128 * kMaxTokenTile];
      pool.isa().ternary_rows(args.w, tile.w_begin, tile.w_end, quantised, tile.t_begin, tile.t_end,
                              products, static_cast<size_t>(tile.width()));
      for (int t = tile.t_begin; t < tile.t_end; ++t) {
        if (!pool.isa().add(args.x + at(t, dim, tile.w_begin),
                            products + at(t - tile.t_begin, tile.width()), tile.width())) {
          set_fault(args.fault, args.layer + 1);
        }
      }
    }
  });
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
      for (int i = 0; i < dim; ++i) {
        args.x[at(row, dim, i)] =
            widen(args.table.data, args.table.type, at(args.ids[row], dim, i));
      }
    }
  });
}

void qkv(const QkvArgs& args, Pool& pool) {
  const TernaryMatrix* matrices[3] = {&args.q, &args.k, &args.v};
  float* products[3] = {args.q_out, args.k_out, args.v_out};
  const QuantisedRows quantised =
      quantise_rows(pool, args.x, args.gain, args.eps, args.dim, args.rows, args.fault, args.layer);

  // One loop over the items of all three products.
  const Tiling tilings[3] = {Tiling(args.q.rows, args.rows, pool.threads()),
                             Tiling(args.k.rows, args.rows, pool.threads()),
                             Tiling(args.v.rows, args.rows, pool.threads())};
  const int items = tilings[0].items() + tilings[1].items() + tilings[2].items();
  pool.for_each(items, 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      int index = item;
      int which = 0;
      while (index >= tilings[which].items()) index -= tilings[which++].items();
      const int width = matrices[which]->rows;
      const Tile tile(tilings[which], index, width, args.rows);
      pool.isa().ternary_rows(*matrices[which], tile.w_begin, tile.w_end, quantised, tile.t_begin,
                              tile.t_end, products[which] + at(tile.t_begin, width, tile.w_begin),
                              static_cast<size_t>(width));
    }
  });

  const int half = args.head_dim / 2;
  pool.for_each(args.rows, 4, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
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
  const QuantisedRows quantised =
      quantise_rows(pool, args.x, args.gain, args.eps, dim, args.rows, args.fault, args.layer);
  const Tiling tiling(ffn, args.rows, pool.threads());
  pool.for_each(tiling.items(), 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const Tile tile(tiling, item, ffn, args.rows);
      const size_t stride = static_cast<size_t>(tile.width());
      float gate[128 * kMaxTokenTile];
      float up[128 * kMaxTokenTile];
      pool.isa().ternary_rows(args.gate, tile.w_begin, tile.w_end, quantised, tile.t_begin,
                              tile.t_end, gate, stride);
      pool.isa().ternary_rows(args.up, tile.w_begin, tile.w_end, quantised, tile.t_begin,
                              tile.t_end, up, stride);
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
  constexpr int kRowsPerItem = 64;  // a few hundred kB of bf16: long against the hand-over
  pool.for_each((vocab + kRowsPerItem - 1) / kRowsPerItem, 1, [&](int begin, int end, int) {
    const int i_begin = begin * kRowsPerItem;
    const int i_end = std::min(end * kRowsPerItem, vocab);
    if (!pool.isa().dense_rows(args.w, i_begin, i_end, args.normed, args.rows,
                               args.logits + i_begin, static_cast<size_t>(vocab))) {
      set_fault(args.fault, args.layers + 1);
    }
  });
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
