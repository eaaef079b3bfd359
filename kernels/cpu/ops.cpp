// The ops: how the work is shared out. The inner loops are in simd.inc and the files that include
// it.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "kernels/canonical.h"
#include "kernels/cpu/cache_rows.h"
#include "kernels/cpu/carver.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/primitives.h"

namespace edgellm::cpu {
namespace {

size_t at(int row, int width, int column = 0) {
  return static_cast<size_t>(row) * static_cast<size_t>(width) + static_cast<size_t>(column);
}

void set_fault(int32_t* fault, int value) {
  int32_t none = 0;
  std::atomic_ref<int32_t>(*fault).compare_exchange_strong(none, value, std::memory_order_relaxed);
}

QuantisedRows take_quantised(Carver& carver, const Primitives& isa, int rows, int cols) {
  QuantisedRows out;
  out.stride = quantised_stride(isa, cols);
  out.codes = carver.take<int8_t>(static_cast<size_t>(rows) * out.stride);
  out.sum = carver.take<int32_t>(static_cast<size_t>(rows));
  out.s = carver.take<float>(static_cast<size_t>(rows));
  out.r = carver.take<float>(static_cast<size_t>(rows));
  return out;
}

// What an op with a ternary product keeps in shared scratch between its two parallel loops.
struct Workspace {
  QuantisedRows quantised;
  float* products = nullptr;  // [rows, width], where the op needs them afterwards

  static Workspace take(Pool& pool, int rows, int cols, int width) {
    const auto place = [&](Carver carver, Workspace& workspace) {
      workspace.quantised = take_quantised(carver, pool.isa(), rows, cols);
      workspace.products =
          carver.take<float>(static_cast<size_t>(rows) * static_cast<size_t>(width));
      return carver.used();
    };
    Workspace workspace;
    const size_t bytes = place(Carver(), workspace);
    place(Carver(pool.shared_scratch(bytes)), workspace);
    return workspace;
  }
};

void quantise_rows(Pool& pool, const float* y, const float* gain, float eps, int cols, int rows,
                   const QuantisedRows& out, int32_t* fault, int layer) {
  pool.for_each(rows, 1, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      if (!pool.isa().quantise(y + at(row, cols), gain, eps, cols, out, row)) {
        set_fault(fault, layer + 1);
      }
    }
  });
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
  const Workspace workspace = Workspace::take(pool, args.rows, args.w.cols, 0);
  quantise_rows(pool, args.y, args.gain, args.eps, args.w.cols, args.rows, workspace.quantised,
                args.fault, args.layer);
  const Tiling tiling(dim, args.rows, pool.threads());
  pool.for_each(tiling.items(), 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const Tile tile(tiling, item, dim, args.rows);
      float products[128 * kMaxTokenTile];
      pool.isa().ternary_rows(args.w, tile.w_begin, tile.w_end, workspace.quantised, tile.t_begin,
                              tile.t_end, products, static_cast<size_t>(tile.width()));
      for (int t = tile.t_begin; t < tile.t_end; ++t) {
        if (!pool.isa().add(args.x + at(t, dim, tile.w_begin),
                            products + at(t - tile.t_begin, tile.width()), tile.width())) {
          set_fault(args.fault, args.layer + 1);
        }
      }
    }
  });
}

// The queries of an item in codes, and their results.
class IntegerQueries {
 public:
  static size_t bytes(int head_dim, int queries) {
    IntegerQueries counted;
    return counted.place(Carver(), head_dim, queries);
  }

  // `memory` has bytes() of them.
  IntegerQueries(const AttentionArgs& args, const AttentionItem& of, std::byte* memory)
      : args_(&args), of_(&of) {
    const int head_dim = args.kv.head_dim;
    const int heads = of.head_end - of.head_begin;
    item_.queries = (of.row_end - of.row_begin) * heads;
    place(Carver(memory), head_dim, item_.queries);
    item_.keys = static_cast<const int16_t*>(args.kv.k);
    item_.values = static_cast<const int16_t*>(args.kv.v);
    item_.units = args.kv.units;
    item_.tiles = of.tiles;
    item_.head_dim = head_dim;
    item_.lengths = lengths_;
    item_.high_digits = high_;
    item_.low_digits = low_;
    item_.factors = factors_;
    for (int query = 0; query < item_.queries; ++query) {
      lengths_[query] = args.places.position[of.row_begin + query / heads] + 1;
      code(query, args.q + offset_of(query));
      float* state = state_of(query);
      std::fill_n(state, kStateFloats + padded_value_dim(head_dim), 0.0f);
      state[0] = -std::numeric_limits<float>::infinity();
    }
  }

  const IntegerItem& item() const { return item_; }

  void finish() {
    const int head_dim = item_.head_dim;
    for (int query = 0; query < item_.queries; ++query) {
      float* state = state_of(query);
      float* sums = state + kStateFloats;
      turn(sums, head_dim);
      const float factor = output_factor(state[1], head_dim);
      float* out = args_->out + offset_of(query);
      for (int d = 0; d < head_dim; ++d) out[d] = sums[d] * factor;
    }
  }

 private:
  IntegerQueries() = default;

  size_t place(Carver carver, int head_dim, int queries) {
    const auto n = static_cast<size_t>(queries);
    const auto codes = n * static_cast<size_t>(head_dim);
    lengths_ = carver.take<int>(n);
    factors_ = carver.take<float>(n);
    high_ = carver.take<int16_t>(codes);
    low_ = carver.take<int16_t>(codes);
    turned_ = carver.take<float>(static_cast<size_t>(head_dim));
    item_.states =
        carver.take<float>(n * static_cast<size_t>(kStateFloats + padded_value_dim(head_dim)));
    return carver.used();
  }

  float* state_of(int query) {
    return item_.states + at(query, kStateFloats + padded_value_dim(item_.head_dim));
  }

  // Of a query's row in args.q and args.out.
  size_t offset_of(int query) const {
    const int heads = of_->head_end - of_->head_begin;
    return at(of_->row_begin + query / heads, args_->heads * item_.head_dim,
              (of_->head_begin + query % heads) * item_.head_dim);
  }

  // The unit of a row that is not finite is NaN, and so is its result.
  void code(int query, const float* row) {
    const int head_dim = item_.head_dim;
    std::copy_n(row, head_dim, turned_);
    turn(turned_, head_dim);
    const float amax = largest_magnitude(turned_, head_dim);
    const bool finite = std::isfinite(amax);
    const RowUnit unit = row_unit(finite ? amax : 0.0f);
    factors_[query] =
        score_factor(finite ? unit.unit : std::numeric_limits<float>::quiet_NaN(), head_dim);
    int16_t* high = high_ + at(query, head_dim);
    int16_t* low = low_ + at(query, head_dim);
    for (int d = 0; d < head_dim; ++d) {
      const Digits digits = digits_of(finite ? code_of(turned_[d], unit.per_unit) : 0);
      high[d] = static_cast<int16_t>(digits.high);
      low[d] = static_cast<int16_t>(digits.low);
    }
  }

  const AttentionArgs* args_ = nullptr;
  const AttentionItem* of_ = nullptr;
  IntegerItem item_;
  int* lengths_ = nullptr;
  float* factors_ = nullptr;
  int16_t* high_ = nullptr;
  int16_t* low_ = nullptr;
  float* turned_ = nullptr;
};

}  // namespace

size_t quantised_stride(const Primitives& isa, int cols) {
  const int group = 4 * isa.plane_bytes;
  return static_cast<size_t>((cols + group - 1) / group) * static_cast<size_t>(group);
}

size_t attention_scratch_floats(int head_dim, int rows, int heads) {
  const int score_dim = padded_score_dim(head_dim);
  const int value_dim = padded_value_dim(head_dim);
  return static_cast<size_t>((score_dim + value_dim) * kAttentionChunk) +
         static_cast<size_t>(value_dim + score_dim + kAttentionChunk) +
         static_cast<size_t>(rows * heads) * static_cast<size_t>(value_dim + 16);
}

int padded_score_dim(int head_dim) {
  int dim = 16;
  while (dim < head_dim) dim *= 2;
  return dim;
}

int padded_value_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

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
  const int width = args.q.rows + args.k.rows + args.v.rows;
  const Workspace workspace = Workspace::take(pool, args.rows, args.dim, width);
  quantise_rows(pool, args.x, args.gain, args.eps, args.dim, args.rows, workspace.quantised,
                args.fault, args.layer);

  // One loop over the items of all three products, which land side by side.
  const Tiling tilings[3] = {Tiling(args.q.rows, args.rows, pool.threads()),
                             Tiling(args.k.rows, args.rows, pool.threads()),
                             Tiling(args.v.rows, args.rows, pool.threads())};
  const int items = tilings[0].items() + tilings[1].items() + tilings[2].items();
  pool.for_each(items, 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      int index = item;
      int which = 0;
      int column = 0;
      while (index >= tilings[which].items()) {
        index -= tilings[which].items();
        column += matrices[which]->rows;
        ++which;
      }
      const Tile tile(tilings[which], index, matrices[which]->rows, args.rows);
      pool.isa().ternary_rows(*matrices[which], tile.w_begin, tile.w_end, workspace.quantised,
                              tile.t_begin, tile.t_end,
                              workspace.products + at(tile.t_begin, width, column + tile.w_begin),
                              static_cast<size_t>(width));
    }
  });

  const int half = args.kv.head_dim / 2;
  pool.for_each(args.rows, 4, [&](int begin, int end, int) {
    for (int row = begin; row < end; ++row) {
      float* q = workspace.products + at(row, width);
      float* k = q + args.q.rows;
      float* v = k + args.k.rows;
      const int position = args.places.position[row];
      const int sequence = args.places.sequence[row];
      const float* cosine = args.rope_cos + at(position, half);
      const float* sine = args.rope_sin + at(position, half);
      rotate(q, args.heads, args.kv.head_dim, cosine, sine);
      rotate(k, args.kv.kv_heads, args.kv.head_dim, cosine, sine);
      std::memcpy(args.q_out + at(row, args.q.rows), q,
                  static_cast<size_t>(args.q.rows) * sizeof(float));
      if (args.kv.type != KvType::kI16) {
        append_row(args.kv, sequence, position, k, v);
      } else if (!append_codes(args.kv, sequence, position, k, v)) {
        set_fault(args.fault, args.layer + 1);
      }
    }
  });
}

void attention(const AttentionArgs& args, Pool& pool) {
  // Rows of one sequence, in rising positions, that share the tiles of a kv head.
  constexpr int kRowsPerItem = 16;
  const int group = args.heads / args.kv.kv_heads;

  int* block_begin =
      reinterpret_cast<int*>(pool.shared_scratch(static_cast<size_t>(args.rows + 1) * sizeof(int)));
  int blocks = 0;
  for (int row = 0; row < args.rows; ++row) {
    const bool starts = row == 0 || args.places.sequence[row] != args.places.sequence[row - 1] ||
                        args.places.position[row] < args.places.position[row - 1] ||
                        row - block_begin[blocks - 1] == kRowsPerItem;
    if (starts) block_begin[blocks++] = row;
  }
  block_begin[blocks] = args.rows;

  // Few rows: the heads of a group go to different threads, although each then reads the tiles.
  int splits = 1;
  while (splits < group && blocks * args.kv.kv_heads * splits < 4 * pool.threads()) ++splits;
  const int heads_per_item = (group + splits - 1) / splits;
  splits = (group + heads_per_item - 1) / heads_per_item;

  const bool integers = args.kv.type == KvType::kI16;
  const size_t scratch_bytes =
      integers ? IntegerQueries::bytes(args.kv.head_dim, kRowsPerItem * heads_per_item)
               : attention_scratch_floats(args.kv.head_dim, kRowsPerItem, heads_per_item) *
                     sizeof(float);
  pool.for_each(blocks * args.kv.kv_heads * splits, 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; ++i) {
      const int block = i / (args.kv.kv_heads * splits);
      const int kv_head = i / splits % args.kv.kv_heads;
      AttentionItem item;
      item.head_begin = kv_head * group + i % splits * heads_per_item;
      item.head_end = std::min(item.head_begin + heads_per_item, (kv_head + 1) * group);
      item.row_begin = block_begin[block];
      item.row_end = block_begin[block + 1];

      const int chunks = args.places.position[item.row_end - 1] / kAttentionChunk + 1;
      std::byte* memory =
          pool.thread_scratch(thread, scratch_bytes + static_cast<size_t>(chunks) * sizeof(size_t));
      size_t* tiles = reinterpret_cast<size_t*>(memory + scratch_bytes);
      for (int c = 0; c < chunks; ++c) {
        tiles[c] =
            args.kv.tile_offset(args.places.sequence[item.row_begin], c * kAttentionChunk, kv_head);
      }
      item.tiles = tiles;
      if (integers) {
        IntegerQueries queries(args, item, memory);
        pool.isa().integer_attention(queries.item());
        queries.finish();
      } else {
        pool.isa().attention(args, item, reinterpret_cast<float*>(memory));
      }
    }
  });
}

void attn_out(const ProjectArgs& args, Pool& pool) { project(args, pool); }

void ffn_up(const FfnUpArgs& args, Pool& pool) {
  const int dim = args.gate.cols;
  const int ffn = args.gate.rows;
  const Workspace workspace = Workspace::take(pool, args.rows, dim, 0);
  quantise_rows(pool, args.x, args.gain, args.eps, dim, args.rows, workspace.quantised, args.fault,
                args.layer);
  const Tiling tiling(ffn, args.rows, pool.threads());
  pool.for_each(tiling.items(), 1, [&](int begin, int end, int) {
    for (int item = begin; item < end; ++item) {
      const Tile tile(tiling, item, ffn, args.rows);
      const size_t stride = static_cast<size_t>(tile.width());
      float gate[128 * kMaxTokenTile];
      float up[128 * kMaxTokenTile];
      pool.isa().ternary_rows(args.gate, tile.w_begin, tile.w_end, workspace.quantised,
                              tile.t_begin, tile.t_end, gate, stride);
      pool.isa().ternary_rows(args.up, tile.w_begin, tile.w_end, workspace.quantised, tile.t_begin,
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
