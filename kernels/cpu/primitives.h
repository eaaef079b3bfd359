// What differs between instruction sets: the inner loops of the CPU backend, as a table of
// functions with one row per instruction set (portable.cpp, avx*.cpp, neon*.cpp). The
// ops in ops.cpp share out the work and call these. Every row of the table gives the same bits.
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

// Activation rows as int16 codes with a unit for each group of columns (Activations::kInt16Group),
// ordered for the instruction set: SIMD files have the planes of QuantisedRows of the high digits
// (code = 256 high + low), then those of the low ones; `portable` has int16 codes.
struct GroupedRows {
  int8_t* digits = nullptr;  // [rows, 2, stride]
  size_t stride = 0;         // as QuantisedRows::stride
  int groups = 0;            // room for those of whole planes
  int32_t* sum = nullptr;    // [rows, groups] sum of the codes
  float* unit = nullptr;     // [rows, groups]
  float* r = nullptr;        // [rows] as in QuantisedRows
};

// What attention keeps of a query between chunks: maximum and sum of the weights, then from
// kStateFloats on the weighted sums of values, padded to whole vectors.
inline constexpr int kStateFloats = 16;
int state_floats(int head_dim);

// Attention over floats of some heads for consecutive rows of one sequence.
struct AttentionItem {
  const size_t* tiles = nullptr;  // [chunks] first element of the kv head's tile of each chunk
  int head_begin = 0;             // query heads [head_begin, head_end), all of one kv head's group
  int head_end = 0;
  int row_begin = 0;  // rows [row_begin, row_end), same sequence, positions ascending
  int row_end = 0;
  int state_floats = 0;
};

// The same over codes (kernels/integer_attention.h): chunks that begin in [begin, end) for queries,
// heads of rows, in any number, with rows ascending.
struct IntegerItem {
  const uint8_t* keys = nullptr;  // pools, in tiles of the order below
  const int8_t* values = nullptr;
  const float* units = nullptr;
  const size_t* tiles = nullptr;  // [tiles] first element of each tile of the sequence
  int digits = 0;                 // bytes of an element
  int head_dim = 0;
  int tile_dims = 0;
  int begin = 0;  // positions, a multiple of kIntegerChunk
  int end = 0;

  int queries = 0;
  const int* lengths = nullptr;      // [queries] positions that the query sees, at least one
  const std::byte* codes = nullptr;  // [queries, query_bytes], in the order of the instruction set
  size_t query_bytes = 0;
  const float* factors = nullptr;  // [queries] score_factor()

  float* states = nullptr;  // [queries, state_floats] in and out
  size_t state_floats = 0;
};

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

// The steps of hidden states (kernels/certified_head.h) in two int8 digits: step = 256 high + low,
// with high in -127 .. 127 and low in -128 .. 127.
inline constexpr float kMaxHeadStep = kMaxGroupCode;
struct HeadSteps {
  int8_t* digits;  // [rows, 2, CertifiedHead::pitch()]: the high ones, the low ones
  int32_t* sums;   // [rows] of the steps
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

  // The same for GroupedRows.
  bool (*code_groups)(const float* x, const float* gain, float eps, int n, const GroupedRows& out,
                      int row);
  void (*group_rows)(const TernaryMatrix& w, int i_begin, int i_end, const GroupedRows& x,
                     int t_begin, int t_end, float* out, size_t out_stride);

  // normed = gain * (x * r), the norm before the head and of the heads of q and k. In place too.
  void (*rms_norm)(const float* x, const float* gain, float eps, int n, float* normed);

  // out[t * out_stride + i - i_begin] = canonical_sum of w[i] * y[t]; y is [t_count, w.cols].
  // False: a result is not finite.
  bool (*dense_rows)(const DenseMatrix& w, int i_begin, int i_end, const float* y, int t_count,
                     float* out, size_t out_stride);

  // The largest of n values, none of them NaN.
  float (*largest)(const float* x, int n);

  // out[i] = canonical_exp(weight_exponent(x[i], largest, factor)) (kernels/choice.h)
  void (*powers)(const float* x, float largest, float factor, int n, float* out);

  // The largest magnitude in row i. False: a value is not finite.
  bool (*row_amax)(const DenseMatrix& w, int i, float* amax);

  // codes [w.cols] of row i, as the nearest int8.
  RowSquares (*code_row)(const DenseMatrix& w, int i, const RowCoding& coding, int8_t* codes);

  // out[t * out_stride + i - i_begin] = the exact sum of codes[i] * steps[t], as the nearest float,
  // of codes as head_codes.h has them and t_count rows of steps.
  void (*certified_products)(const CertifiedHead& certified, int i_begin, int i_end,
                             const HeadSteps& steps, int t_count, float* out, size_t out_stride);

  // out[i] = act(g[i]) * u[i]
  void (*gate)(GateActivation act, const float* g, const float* u, int n, float* out);

  // x[i] += y[i]. False: a result is not finite.
  bool (*add)(float* x, const float* y, int n);

  // Attention of an item over floats, in tiles [position, head_dim]. `scratch`: 1 + rows * heads
  // times state_floats.
  void (*attention)(const AttentionArgs& args, const AttentionItem& item, float* scratch);

  // Turns a row; turned [tile_dims], zeros behind head_dim. Returns the largest magnitude, NaN
  // where a value is not finite.
  float (*turn_row)(const float* row, int head_dim, int tile_dims, float* turned);

  // The digits of rint(turned * per_unit), tile_dims of each.
  void (*code_digits)(const float* turned, int tile_dims, float per_unit, int8_t* high,
                      int8_t* low);

  // A query's codes; query [query_bytes(tile_dims)].
  void (*code_query)(const float* turned, int tile_dims, float per_unit, std::byte* query);

  // Adds the chunks of an item to its states.
  void (*integer_attention)(const IntegerItem& item);

  // Adds the state of later chunks, of one chunk alone for the bits to be those of the definition.
  void (*merge_states)(float* state, const float* next, int width);
};

// QuantisedRows::stride of rows of `cols` columns.
size_t quantised_stride(const Primitives& isa, int cols);

// A tile over codes, in bytes: a plane of high digits and, of type i16, one of low digits. Keys lie
// in words of 4 dimensions and are digits + 128, values in words of 4 positions: as vpdpbusd takes
// them.
inline constexpr int key_digit_index(int position, int d) {
  return (d / 4 * kAttentionChunk + position % kAttentionChunk) * 4 + d % 4;
}
inline constexpr int value_digit_index(int position, int d, int tile_dims) {
  return (position % kAttentionChunk / 4 * tile_dims + d) * 4 + position % 4;
}
inline constexpr int kKeyOffset = 128;

// Room for a query's codes: 4 bytes a dimension and what sums start with.
inline constexpr size_t query_bytes(int tile_dims) {
  return 4 * static_cast<size_t>(tile_dims) + 64;
}

extern const Primitives kPortable;
#if defined(__x86_64__)
extern const Primitives kAvx2;
extern const Primitives kAvxVnni;
extern const Primitives kAvx512;
extern const Primitives kAvx512Amx;  // and prompts on tile registers
#elif defined(__aarch64__)
extern const Primitives kNeon;
extern const Primitives kNeonDotprod;
extern const Primitives kNeonI8mm;
#endif

}  // namespace edgellm::cpu
