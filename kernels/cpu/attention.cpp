// Attention: the append to the cache, and how the work is shared out. The inner loops are in
// simd.inc and integer.inc.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/canonical.h"
#include "kernels/cpu/carver.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/rows.h"
#include "kernels/integer_attention.h"

namespace edgellm::cpu {
namespace {

// Items that even out what the machine does besides.
constexpr int kItemsPerThread = 4;

// ---- Blocks of rows -------------------------------------------------------------------------

// Rows of one sequence, in rising positions, that share the tiles of a kv head.
struct RowBlock {
  int begin;
  int end;
};

// Calls visit(block) for every block of at most `rows_per_block` rows; returns their number.
template <class Visit>
int for_blocks(const AttentionArgs& args, int rows_per_block, Visit visit) {
  int count = 0;
  for (int begin = 0, row = 1; row <= args.rows; ++row) {
    const bool ends = row == args.rows || row - begin == rows_per_block ||
                      args.places.sequence[row] != args.places.sequence[row - 1] ||
                      args.places.position[row] < args.places.position[row - 1];
    if (!ends) continue;
    visit(RowBlock{begin, row}, count++);
    begin = row;
  }
  return count;
}

int length_of(const AttentionArgs& args, const RowBlock& block) {
  return args.places.position[block.end - 1] + 1;
}

// First elements of the tiles of a block's positions.
void find_tiles(const AttentionArgs& args, const RowBlock& block, int kv_head, size_t* tiles) {
  for (int p = 0; p < length_of(args, block); p += kAttentionChunk) {
    *tiles++ = args.kv.tile_offset(args.places.sequence[block.begin], p, kv_head);
  }
}

int tiles_of(int positions) { return (positions + kAttentionChunk - 1) / kAttentionChunk; }

// ---- Codes: rows -----------------------------------------------------------------------------

// The row's digits, all 0 where a value is not finite. `unit_of` makes a unit of the largest
// magnitude.
struct RowDigits {
  alignas(64) float turned[kMaxIntegerHeadDim];
  int8_t high[kMaxIntegerHeadDim];
  int8_t low[kMaxIntegerHeadDim];
  bool finite;

  CodeUnit code(const Primitives& isa, const KvCache& kv, const float* row, bool is_value) {
    const float amax = isa.turn_row(row, kv.head_dim, kv.tile_dims(), turned);
    finite = std::isfinite(amax);
    if (!finite) std::fill_n(turned, kv.tile_dims(), 0.0f);
    const CodeUnit unit = code_unit(finite ? amax : 0.0f, max_code(kv.type), is_value);
    isa.code_digits(turned, kv.tile_dims(), unit.per_unit, high, low);
    return unit;
  }
};

// Whole words of four dimensions; what is behind the last dimension is left as it is.
void store_key(const int8_t* digits, int head_dim, int position, uint8_t* plane) {
  int d = 0;
  for (; d + 4 <= head_dim; d += 4) {
    uint32_t word;
    std::memcpy(&word, digits + d, sizeof word);
    word ^= 0x80808080u;  // + kKeyOffset
    std::memcpy(plane + key_digit_index(position, d), &word, sizeof word);
  }
  for (; d < head_dim; ++d) {
    plane[key_digit_index(position, d)] = static_cast<uint8_t>(digits[d] + kKeyOffset);
  }
}

void store_value(const int8_t* digits, int head_dim, int tile_dims, int position, int8_t* plane) {
  for (int d = 0; d < head_dim; ++d) plane[value_digit_index(position, d, tile_dims)] = digits[d];
}

// Appends a key and a value of one kv head. False: a value is not finite.
bool append_codes(const KvCache& kv, const Primitives& isa, int sequence, int position, int kv_head,
                  const float* key, const float* value) {
  const int digits = kv_element_bytes(kv.type);
  const size_t tile = kv.tile_offset(sequence, position, kv_head);
  const size_t plane = at(kAttentionChunk, kv.tile_dims());
  float* units = kv.tile_units(tile) + position % kAttentionChunk;
  RowDigits row;

  // A code of one digit is the low digit of what code_digits() makes.
  const CodeUnit key_unit = row.code(isa, kv, key, false);
  uint8_t* keys = static_cast<uint8_t*>(kv.k) + tile * static_cast<size_t>(digits);
  if (digits == 2) store_key(row.high, kv.head_dim, position, keys);
  store_key(row.low, kv.head_dim, position, keys + (digits == 2 ? plane : 0));
  units[0] = key_unit.unit;
  const bool key_finite = row.finite;

  const CodeUnit value_unit = row.code(isa, kv, value, true);
  int8_t* values = static_cast<int8_t*>(kv.v) + tile * static_cast<size_t>(digits);
  if (digits == 2) store_value(row.high, kv.head_dim, kv.tile_dims(), position, values);
  store_value(row.low, kv.head_dim, kv.tile_dims(), position, values + (digits == 2 ? plane : 0));
  units[kAttentionChunk] = value_unit.unit;
  units[2 * kAttentionChunk] = value_unit.per_unit;
  return key_finite && row.finite;
}

// ---- Codes: attention ------------------------------------------------------------------------

// A state of every chunk is worth it while states are small beside keys and values.
constexpr size_t kMostStateBytes = size_t{32} << 20;

// All queries of a pass in codes, in the order [kv_heads, rows, heads of a group], and how their
// attention is shared out.
struct CodedPass {
  int group = 0;
  int queries = 0;
  int state_floats = 0;
  int rows_per_block = 0;
  int n_blocks = 0;
  int longest = 0;  // positions that a row sees
  // Ranges of chunks that different threads take; 1: a thread takes all chunks of its rows.
  int ranges = 1;

  RowBlock* blocks = nullptr;  // [n_blocks]
  int* lengths = nullptr;      // [queries]
  float* factors = nullptr;    // [queries]
  std::byte* codes = nullptr;  // [queries, query_bytes()]
  float* states = nullptr;     // [chunks(), queries, state_floats] where there are ranges

  CodedPass(const AttentionArgs& args, Pool& pool)
      : group(args.heads / args.kv.kv_heads),
        queries(args.rows * args.heads),
        state_floats(cpu::state_floats(args.kv.head_dim)) {
    // Many rows a block share what is loaded of a tile. Fewer where items would be too few.
    const int wanted = kItemsPerThread * pool.threads();
    rows_per_block = 16;
    while (rows_per_block > 4 && args.rows * args.kv.kv_heads < wanted * rows_per_block) {
      rows_per_block /= 2;
    }
    n_blocks = for_blocks(args, rows_per_block, [&](const RowBlock& block, int) {
      longest = std::max(longest, length_of(args, block));
    });
    const int items = n_blocks * args.kv.kv_heads;
    const size_t state_bytes =
        at(chunks(), queries) * static_cast<size_t>(state_floats) * sizeof(float);
    if (pool.threads() > 1 && items < wanted && state_bytes <= kMostStateBytes) {
      ranges = std::min(chunks(), (wanted + items - 1) / items);
    }

    Carver counted;
    place(counted, args.kv.tile_dims());
    Carver carver(pool.shared_scratch(counted.used()));
    place(carver, args.kv.tile_dims());
    for_blocks(args, rows_per_block, [&](const RowBlock& block, int b) { blocks[b] = block; });
  }

  int chunks() const { return (longest + kIntegerChunk - 1) / kIntegerChunk; }
  float* state(int chunk, int query) const {
    return states +
           (at(chunk, queries) + static_cast<size_t>(query)) * static_cast<size_t>(state_floats);
  }

 private:
  void place(Carver& carver, int tile_dims) {
    const auto n = static_cast<size_t>(queries);
    blocks = carver.take<RowBlock>(static_cast<size_t>(n_blocks));
    lengths = carver.take<int>(n);
    factors = carver.take<float>(n);
    codes = carver.take<std::byte>(n * query_bytes(tile_dims));
    if (ranges > 1)
      states = carver.take<float>(at(chunks(), queries) * static_cast<size_t>(state_floats));
  }
};

// Appends the keys and values of a row's kv head, and codes the queries of its group.
void code_row(const AttentionArgs& args, const Primitives& isa, const CodedPass& pass, int row,
              int kv_head) {
  const KvCache& kv = args.kv;
  const int head_dim = kv.head_dim;
  const int position = args.places.position[row];
  if (args.k != nullptr) {
    const size_t from = at(row, kv.kv_heads * head_dim, kv_head * head_dim);
    if (!append_codes(kv, isa, args.places.sequence[row], position, kv_head, args.k + from,
                      args.v + from)) {
      set_fault(args.fault, args.layer + 1);
    }
  }
  alignas(64) float turned[kMaxIntegerHeadDim];
  for (int h = 0; h < pass.group; ++h) {
    const int query = (kv_head * args.rows + row) * pass.group + h;
    const float* q = args.q + at(row, args.heads * head_dim, (kv_head * pass.group + h) * head_dim);
    const float amax = isa.turn_row(q, head_dim, kv.tile_dims(), turned);
    // The unit of a row that is not finite is NaN, and so is its result.
    const bool finite = std::isfinite(amax);
    if (!finite) std::fill_n(turned, kv.tile_dims(), 0.0f);
    const CodeUnit unit = code_unit(finite ? amax : 0.0f, kMaxQueryCode, false);
    isa.code_query(turned, kv.tile_dims(), unit.per_unit,
                   pass.codes + at(query, 1) * query_bytes(kv.tile_dims()));
    pass.factors[query] = score_factor(finite ? unit.unit : std::numeric_limits<float>::quiet_NaN(),
                                       head_scale(head_dim), kv.type);
    pass.lengths[query] = position + 1;
  }
}

// The result of a query whose chunks are all in its state.
void finish_query(const AttentionArgs& args, const Primitives& isa, const CodedPass& pass,
                  int query, const float* state) {
  const int head_dim = args.kv.head_dim;
  const int kv_head = query / (args.rows * pass.group);
  const int row = query / pass.group % args.rows;
  const int head = kv_head * pass.group + query % pass.group;
  alignas(64) float turned[kMaxIntegerHeadDim];
  isa.turn_row(state + kStateFloats, head_dim, args.kv.tile_dims(), turned);
  const float factor = output_factor(state[1], head_dim, args.kv.type);
  float* out = args.out + at(row, args.heads * head_dim, head * head_dim);
  for (int d = 0; d < head_dim; ++d) out[d] = turned[d] * factor;
}

void clear_states(float* states, int count, int state_floats) {
  std::fill_n(states, at(count, state_floats), 0.0f);
  for (int i = 0; i < count; ++i)
    states[at(i, state_floats)] = -std::numeric_limits<float>::infinity();
}

// One of `ranges` parts of the chunks of a block and a kv head.
void attend(const AttentionArgs& args, Pool& pool, const CodedPass& pass, const RowBlock& block,
            int kv_head, int range, int thread) {
  const int chunks = (length_of(args, block) + kIntegerChunk - 1) / kIntegerChunk;
  const int begin = chunks * range / pass.ranges;
  const int end = chunks * (range + 1) / pass.ranges;
  if (begin == end) return;
  IntegerItem item;
  item.queries = (block.end - block.begin) * pass.group;
  const size_t own_states = pass.ranges == 1 ? at(item.queries, pass.state_floats) : 0;
  float* states = reinterpret_cast<float*>(pool.thread_scratch(
      thread, own_states * sizeof(float) +
                  static_cast<size_t>(tiles_of(length_of(args, block))) * sizeof(size_t)));
  size_t* tiles = reinterpret_cast<size_t*>(states + own_states);
  find_tiles(args, block, kv_head, tiles);

  const int first = (kv_head * args.rows + block.begin) * pass.group;
  item.keys = static_cast<const uint8_t*>(args.kv.k);
  item.values = static_cast<const int8_t*>(args.kv.v);
  item.units = args.kv.units;
  item.tiles = tiles;
  item.digits = kv_element_bytes(args.kv.type);
  item.head_dim = args.kv.head_dim;
  item.tile_dims = args.kv.tile_dims();
  item.lengths = pass.lengths + first;
  item.query_bytes = query_bytes(item.tile_dims);
  item.codes = pass.codes + static_cast<size_t>(first) * item.query_bytes;
  item.factors = pass.factors + first;
  item.state_floats = static_cast<size_t>(pass.state_floats);
  if (pass.ranges == 1) {
    clear_states(states, item.queries, pass.state_floats);
    item.states = states;
    item.end = chunks * kIntegerChunk;
    pool.isa().integer_attention(item);
    for (int q = 0; q < item.queries; ++q) {
      finish_query(args, pool.isa(), pass, first + q, states + at(q, pass.state_floats));
    }
    return;
  }
  for (int chunk = begin; chunk < end; ++chunk) {
    item.states = pass.state(chunk, first);
    clear_states(item.states, item.queries, pass.state_floats);
    item.begin = chunk * kIntegerChunk;
    item.end = item.begin + kIntegerChunk;
    pool.isa().integer_attention(item);
  }
}

void attention_over_codes(const AttentionArgs& args, Pool& pool) {
  const CodedPass pass(args, pool);
  const int kv_heads = args.kv.kv_heads;
  // Four items are about a microsecond: what a hand-over costs.
  pool.for_each(args.rows * kv_heads, 4, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i) code_row(args, pool.isa(), pass, i / kv_heads, i % kv_heads);
  });
  pool.for_each(pass.n_blocks * kv_heads * pass.ranges, 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; ++i) {
      attend(args, pool, pass, pass.blocks[i / (kv_heads * pass.ranges)],
             i / pass.ranges % kv_heads, i % pass.ranges, thread);
    }
  });
  if (pass.ranges == 1) return;
  pool.for_each(pass.queries, 4, [&](int begin, int end, int) {
    for (int query = begin; query < end; ++query) {
      const int chunks = (pass.lengths[query] + kIntegerChunk - 1) / kIntegerChunk;
      float* state = pass.state(0, query);
      for (int c = 1; c < chunks; ++c) {
        pool.isa().merge_states(state, pass.state(c, query), pass.state_floats - kStateFloats);
      }
      finish_query(args, pool.isa(), pass, query, state);
    }
  });
}

// ---- Floats ----------------------------------------------------------------------------------

void append_floats(const AttentionArgs& args, int row) {
  const KvCache& kv = args.kv;
  const int position = args.places.position[row];
  for (int h = 0; h < kv.kv_heads; ++h) {
    const size_t to = kv.tile_offset(args.places.sequence[row], position, h) +
                      at(position % kAttentionChunk, kv.head_dim);
    const size_t from = at(row, kv.kv_heads * kv.head_dim, h * kv.head_dim);
    std::copy_n(args.k + from, kv.head_dim, static_cast<float*>(kv.k) + to);
    std::copy_n(args.v + from, kv.head_dim, static_cast<float*>(kv.v) + to);
  }
}

void attention_over_floats(const AttentionArgs& args, Pool& pool) {
  if (args.k != nullptr) {
    pool.for_each(args.rows, 4, [&](int begin, int end, int) {
      for (int row = begin; row < end; ++row) append_floats(args, row);
    });
  }
  constexpr int kRowsPerBlock = 16;
  const int group = args.heads / args.kv.kv_heads;
  const int n_blocks = for_blocks(args, kRowsPerBlock, [](const RowBlock&, int) {});
  RowBlock* blocks = reinterpret_cast<RowBlock*>(
      pool.shared_scratch(static_cast<size_t>(n_blocks) * sizeof(RowBlock)));
  for_blocks(args, kRowsPerBlock, [&](const RowBlock& block, int b) { blocks[b] = block; });
  const int floats = state_floats(args.kv.head_dim);
  const size_t scratch_bytes = at(1 + kRowsPerBlock * group, floats) * sizeof(float);
  pool.for_each(n_blocks * args.kv.kv_heads, 1, [&](int begin, int end, int thread) {
    for (int i = begin; i < end; ++i) {
      const RowBlock& block = blocks[i / args.kv.kv_heads];
      const int kv_head = i % args.kv.kv_heads;
      const auto n_tiles = static_cast<size_t>(tiles_of(length_of(args, block)));
      std::byte* memory = pool.thread_scratch(thread, scratch_bytes + n_tiles * sizeof(size_t));
      size_t* tiles = reinterpret_cast<size_t*>(memory + scratch_bytes);
      find_tiles(args, block, kv_head, tiles);
      const AttentionItem item{tiles,       kv_head * group, (kv_head + 1) * group,
                               block.begin, block.end,       floats};
      pool.isa().attention(args, item, reinterpret_cast<float*>(memory));
    }
  });
}

}  // namespace

int state_floats(int head_dim) { return kStateFloats + (head_dim + 15) / 16 * 16; }

void attention(const AttentionArgs& args, Pool& pool) {
  is_coded(args.kv.type) ? attention_over_codes(args, pool) : attention_over_floats(args, pool);
}

}  // namespace edgellm::cpu
