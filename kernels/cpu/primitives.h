// What differs between instruction sets: the inner loops of the CPU backend, as a table of
// functions with one row per instruction set (portable.cpp, avx2.cpp, avx512.cpp). The ops in
// ops.cpp share out the work and call these. Every row of the table gives the same bits.
//
// Plain structs and pointers only: the SIMD files are compiled for one instruction set each and
// must not instantiate inline functions that other files share (canonical.h says why).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/integer_sizes.h"
#include "kernels/ops.h"

namespace edgellm::cpu {

// Activation rows as int8 codes, ordered for the instruction set's ternary product. In a group of
// `plane_bytes` * 4 columns plane k holds columns 4 b + k, b = 0 .. plane_bytes - 1: shifting the
// packed weights right by 2 k lines them up with plane k. The last group is filled with zeros.
struct QuantisedRows {
  int8_t* codes = nullptr;  // [rows, stride]
  size_t stride = 0;        // bytes a row: columns rounded up to 4 * plane_bytes
  int32_t* sum = nullptr;   // [rows] sum of the codes
  float* s = nullptr;       // [rows] codes per unit
  float* r = nullptr;       // [rows] RMS factor of a folded norm, 1 where there is none
};

// Attention of some heads for consecutive rows of one sequence. See Primitives::attention.
struct AttentionItem {
  const size_t* tiles = nullptr;  // [chunks] first element of the kv head's tile of each chunk
  int head_begin = 0;             // query heads [head_begin, head_end), all of one kv head's group
  int head_end = 0;
  int row_begin = 0;  // rows [row_begin, row_end), same sequence, positions ascending
  int row_end = 0;
};

// The same where the cache is of type i16 (kernels/integer_attention.h): queries are heads of rows,
// in any number, with rows ascending.
struct IntegerItem {
  const int16_t* keys = nullptr;  // pools, in tiles of the order below
  const int16_t* values = nullptr;
  const float* units = nullptr;
  const size_t* tiles = nullptr;  // [tiles] first element of each tile of the sequence
  int head_dim = 0;

  int queries = 0;
  const int* lengths = nullptr;          // [queries] positions that the query sees, at least one
  const int16_t* high_digits = nullptr;  // [queries, head_dim]
  const int16_t* low_digits = nullptr;   // [queries, head_dim]
  const float* factors = nullptr;        // [queries] score_factor()

  // [queries, kStateFloats + padded_value_dim(head_dim)] in and out: maximum and sum of the
  // weights, then from kStateFloats on the sums of the values' codes.
  float* states = nullptr;
};
inline constexpr int kStateFloats = 16;

// Activation rows that one call of Primitives::ternary_rows takes.
inline constexpr int kMaxTokenTile = 64;

// How a row of the head becomes int8 codes: code = rint(scaled * per_unit) for the scaled value
// value * first * second, and about scaled / scale.
struct RowCoding {
  float first;
  float second;
  float per_unit;
  float scale;
};
// Sums of squares over a row, in float in any order.
struct RowSquares {
  float errors;  // scaled - scale * code
  float codes;
  float values;  // scaled
};

struct Primitives {
  const char* name;
  int plane_bytes;

  // Quantises n values of x into row `row` of out; gain may be null. False: a value is not finite,
  // the codes are all 0.
  bool (*quantise)(const float* x, const float* gain, float eps, int n, const QuantisedRows& out,
                   int row);

  // out[(t - t_begin) * out_stride + (i - i_begin)] = the ternary product of weight row i in
  // [i_begin, i_end) with activation row t in [t_begin, t_end), at most kMaxTokenTile, scaled.
  void (*ternary_rows)(const TernaryMatrix& w, int i_begin, int i_end, const QuantisedRows& x,
                       int t_begin, int t_end, float* out, size_t out_stride);

  // normed = gain * (x * r), the norm before the head.
  void (*rms_norm)(const float* x, const float* gain, float eps, int n, float* normed);

  // out[t * out_stride + i - i_begin] = canonical_sum of w[i] * y[t]; y is [t_count, w.cols].
  // False: a result is not finite.
  bool (*dense_rows)(const DenseMatrix& w, int i_begin, int i_end, const float* y, int t_count,
                     float* out, size_t out_stride);

  // The largest magnitude in row i. False: a value is not finite.
  bool (*row_amax)(const DenseMatrix& w, int i, float* amax);

  // codes [w.cols] of row i.
  RowSquares (*code_row)(const DenseMatrix& w, int i, const RowCoding& coding, int8_t* codes);

  // out[t * out_stride + i - i_begin] = the exact sum of codes[i] * steps[t], as the nearest float;
  // steps is [t_count, certified.pitch()], at most 32767 in magnitude.
  void (*certified_products)(const CertifiedHead& certified, int i_begin, int i_end,
                             const int16_t* steps, int t_count, float* out, size_t out_stride);

  // out[i] = act(g[i]) * u[i]
  void (*gate)(GateActivation act, const float* g, const float* u, int n, float* out);

  // x[i] += y[i]. False: a result is not finite.
  bool (*add)(float* x, const float* y, int n);

  // Attention of an item. `scratch` has attention_scratch_floats() floats.
  void (*attention)(const AttentionArgs& args, const AttentionItem& item, float* scratch);

  // Adds all chunks of an item to its states.
  void (*integer_attention)(const IntegerItem& item);
};

// QuantisedRows::stride of rows of `cols` columns.
size_t quantised_stride(const Primitives& isa, int cols);

// Chunk tiles widened to float32 and padded, and the running state of every row and head of an
// item.
size_t attention_scratch_floats(int head_dim, int rows, int heads);

// The scores of a chunk are folded over this many dimensions, the rest being zeros: the power of
// two that canonical_sum's first useful fold step implies.
int padded_score_dim(int head_dim);
// Values a row of a widened V tile holds: head_dim rounded up to 16.
int padded_value_dim(int head_dim);

// Elements of a KV tile (ops.h): keys transposed, values as they come.
inline constexpr int key_index(int position, int d) {
  return d * kAttentionChunk + position % kAttentionChunk;
}
inline constexpr int value_index(int position, int d, int head_dim) {
  return position % kAttentionChunk * head_dim + d;
}
// The same of type i16: pairs of dimensions of a key, pairs of positions of values, as the products
// of pairs take them.
inline constexpr int key_code_index(int position, int d) {
  return (d / 2 * kAttentionChunk + position % kAttentionChunk) * 2 + d % 2;
}
inline constexpr int value_code_index(int position, int d, int head_dim) {
  return (position % kAttentionChunk / 2 * head_dim + d) * 2 + position % 2;
}

extern const Primitives kPortable;
#if defined(__x86_64__)
extern const Primitives kAvx2;
extern const Primitives kAvx512;
#endif

}  // namespace edgellm::cpu
