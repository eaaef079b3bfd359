// The contract between the engine and every backend: what each fused op computes, to the bit.
//
// An op is an args struct, whose comments are its specification, and one function of its name in
// each backend: `ref::op(args)` (plain loops, kernels/ref), `cpu::op(args, pool)` (kernels/cpu) and
// `cuda::op(args, stream)`. All backends give the same bits (docs/numerics.md): tests compare with
// `==`. An op is a pure function of these pointers and sizes; it owns nothing and keeps nothing.
//
// Shape letters: rows (tokens in this pass: one per live sequence in decode, many of one sequence
// in prefill), dim, ffn, heads, kv_heads, head_dim, vocab. All arrays are dense and row-major.
// Only C++17 and the standard library here: nvcc reads this header as well.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define EDGELLM_HOST_DEVICE __host__ __device__
#else
#define EDGELLM_HOST_DEVICE
#endif

namespace edgellm {

// ---- Weights --------------------------------------------------------------------------------

// Columns that share a scale where a matrix has one for each group, and that share a unit where
// activations have one (Activations::kInt16Group). The last group of a row may have fewer.
inline constexpr int kScaleGroup = 128;
EDGELLM_HOST_DEVICE constexpr int group_count(int cols) {
  return (cols + kScaleGroup - 1) / kScaleGroup;
}

enum class DenseType : uint8_t { kF32, kF16, kBF16 };

// A ternary matrix [rows, cols] with a multiplier for the whole, for each row or for each group of
// a row: y[r] = sum_c scale[r][c / kScaleGroup] * codes[r][c] * x[c].
struct TernaryMatrix {
  // [rows, ceil(cols / 4)] bytes, four codes a byte, first code in the low bits, 00 = 0, 01 = +1,
  // 11 = -1 (10 does not occur), the last byte of a row filled with zeros: the layout of the file.
  // `ref` and `cpu` read it as it is; the GPU keeps a repacked copy and passes that here.
  const uint8_t* codes = nullptr;
  const float* scale = nullptr;  // [n_scales], finite, not negative
  int n_scales = 0;              // 1, or rows; 0: group_scale
  int rows = 0;
  int cols = 0;  // at most 2^24, so that any int8 dot product fits in int32
  // [rows, group_count(cols)], finite, not negative; only beside Activations::kInt16Group.
  const void* group_scale = nullptr;
  DenseType group_scale_type = DenseType::kF16;  // or kF32
};

// An unquantised matrix [rows, cols]: embedding and head. Widening to float32 is exact.
struct DenseMatrix {
  const void* data = nullptr;
  DenseType type = DenseType::kF32;
  int rows = 0;
  int cols = 0;
};

// A certified head: codes of a head [rows, cols] that bound every logit. Row v is scale * codes
// plus an error whose norm is known. build_certified_head() of a backend makes it; backends differ
// in the bits of a code.
struct CertifiedRow {
  float scale;
  float error;  // norm of the row minus scale * codes, rounded up, as are the other norms
  float coded;  // norm of scale * codes
  float norm;   // norm of the row; infinite, as the others, where a weight is not finite
};
struct CertifiedHead {
  const void* codes = nullptr;               // as the backend lays them out
  const CertifiedRow* row_bounds = nullptr;  // [rows]
  int rows = 0;
  int cols = 0;  // at most kMaxCertifiedCols

  // Columns, with those that pad codes and steps with zeros.
  EDGELLM_HOST_DEVICE static size_t pitch_of(int cols) {
    return (static_cast<size_t>(cols) + 63) / 64 * 64;
  }
  EDGELLM_HOST_DEVICE size_t pitch() const { return pitch_of(cols); }
};

// 32 int32 sums then hold any product of a row of codes with int16 steps.
inline constexpr int kMaxCertifiedCols = 16384;

// ---- KV cache -------------------------------------------------------------------------------

// i16 and i8: codes of turned rows (kernels/integer_attention.h). f32: floats.
enum class KvType : uint8_t { kI16, kI8, kF32 };

EDGELLM_HOST_DEVICE constexpr bool is_coded(KvType type) {
  return type == KvType::kI16 || type == KvType::kI8;
}
EDGELLM_HOST_DEVICE constexpr int kv_element_bytes(KvType type) {
  return type == KvType::kF32 ? 4 : type == KvType::kI8 ? 1 : 2;
}
// Dimensions that a tile of the cache has room for: whole steps of the tensor cores for codes.
EDGELLM_HOST_DEVICE constexpr int kv_tile_dims(KvType type, int head_dim) {
  return is_coded(type) ? (head_dim + 31) / 32 * 32 : head_dim;
}
// Bytes beside the elements of a key and a value of one position and kv head.
EDGELLM_HOST_DEVICE constexpr int kv_unit_bytes(KvType type) { return is_coded(type) ? 3 * 4 : 0; }

// Attention works on chunks of this many positions, counted from position 0 (docs/numerics.md).
inline constexpr int kAttentionChunk = 64;

// The keys and values of one layer, in blocks of `block_size` positions that a table maps to a
// pool. One contiguous cache is a pool of one big block.
//
// Position p of sequence s lies in pool block `block_table[s * blocks_per_sequence + p /
// block_size]`. A block holds [kv_heads, block_size / kAttentionChunk] tiles of kAttentionChunk *
// kv_tile_dims() elements, one for each kAttentionChunk positions. The order inside a tile is the
// backend's own: `ref`, and `cpu` for floats, keep keys and values as [position, head_dim].
struct KvCache {
  void* k = nullptr;
  void* v = nullptr;
  const int32_t* block_table = nullptr;  // [sequences, blocks_per_sequence]
  int blocks_per_sequence = 0;
  int block_size = 0;  // positions, a multiple of kAttentionChunk
  int kv_heads = 0;
  int head_dim = 0;
  KvType type = KvType::kI16;
  // Codes: for each tile of the pool [3, kAttentionChunk]: key_unit, value_log2_unit and
  // value_per_unit (kernels/integer_attention.h) of its positions.
  float* units = nullptr;

  EDGELLM_HOST_DEVICE int tile_dims() const { return kv_tile_dims(type, head_dim); }
  // Elements in one block of one of the two pools.
  EDGELLM_HOST_DEVICE size_t block_elements() const {
    return static_cast<size_t>(kv_heads) * static_cast<size_t>(block_size) *
           static_cast<size_t>(tile_dims());
  }
  // The number, in the pool, of the tile that holds `position` of `sequence` for one kv head.
  EDGELLM_HOST_DEVICE size_t tile_number(int sequence, int position, int kv_head) const {
    const int in_sequence = position / block_size;
    const int32_t block =
        block_table[static_cast<size_t>(sequence) * static_cast<size_t>(blocks_per_sequence) +
                    static_cast<size_t>(in_sequence)];
    const int tiles_per_head = block_size / kAttentionChunk;
    const int in_block =
        kv_head * tiles_per_head + (position - in_sequence * block_size) / kAttentionChunk;
    return static_cast<size_t>(block) * static_cast<size_t>(kv_heads * tiles_per_head) +
           static_cast<size_t>(in_block);
  }
  EDGELLM_HOST_DEVICE size_t tile_elements() const {
    return static_cast<size_t>(kAttentionChunk) * static_cast<size_t>(tile_dims());
  }
  // First element of that tile.
  EDGELLM_HOST_DEVICE size_t tile_offset(int sequence, int position, int kv_head) const {
    return tile_number(sequence, position, kv_head) * tile_elements();
  }
  // The units of tile `number`.
  EDGELLM_HOST_DEVICE float* units_of(size_t number) const {
    return units + number * (3 * kAttentionChunk);
  }
  // The units of the tile whose first element this is.
  EDGELLM_HOST_DEVICE float* tile_units(size_t tile) const {
    return units_of(tile / tile_elements());
  }
};

// Where each row of a pass belongs.
struct RowPlaces {
  const int32_t* sequence = nullptr;  // [rows] row of the block table
  const int32_t* position = nullptr;  // [rows] position in that sequence, from 0
};

// ---- Ops ------------------------------------------------------------------------------------

// `fault`, in the ops below, is one int32 that the engine sets to 0 before a pass: an op that meets
// a value that is not finite where the next op would quantise or compare it stores `layer + 1`
// there if it still holds 0 (the head stores layers + 1). Codes of such a row are 0. The engine
// turns it into an error after the pass; nothing downstream may crash on the values meanwhile.

// How the rows that a ternary product reads are coded.
enum class Activations : uint8_t {
  // int8, a scale for the row (QkvArgs): models trained so.
  kInt8Row,
  // int16, a unit for each group of columns: models trained with float activations. The error is
  // below that of rounding the row to bf16 (docs/numerics.md).
  //   z = x * gain, or x where there is no gain; in each group, a = max|z|
  //   a == 0:     codes and unit are 0
  //   otherwise   a = max(a, 1e-30f), code = rint(z * (32639.0f / a)), unit = a / 32639.0f
  //   S = +0; for groups g in ascending order:
  //   S = fma(float(W[i] . codes over g) * unit[g], scale[i][g], S)
  //   y[i] = S * r, with r as in QkvArgs where there is a gain, else 1
  kInt16Group,
};
inline constexpr float kMaxGroupCode = 32639.0f;  // 127 * 256 + 127: two int8 digits

// x[r] = float(table[ids[r]]). ids are valid: the engine has checked them.
struct EmbedArgs {
  DenseMatrix table;             // [vocab, dim]; without data: the table is `ternary`
  const int32_t* ids = nullptr;  // [rows]
  float* x = nullptr;            // [rows, dim] out
  int rows = 0;
  TernaryMatrix ternary = {};  // [vocab, dim]; a value is scale * code, +0 for code 0
};

// RMSNorm, where a norm cannot be folded into what follows: a model with input norms has one right
// behind it (docs/numerics.md, "Input norms").
//   r = 1.0f / sqrt(canonical_sum(x * x) / float(dim) + eps); normed = gain * (x * r)
struct NormArgs {
  const float* x = nullptr;     // [rows, dim]
  const float* gain = nullptr;  // [dim]
  float eps = 0;
  float* normed = nullptr;  // [rows, dim] out; may be x
  int rows = 0;
  int dim = 0;
};

// RMSNorm, int8 quantisation, the ternary products q, k and v, RoPE on q and k. Per row (BitNet
// b1.58, arXiv 2402.17764; folded norm: docs/numerics.md):
//   z = x * gain; amax = max|z|
//   amax == 0:  codes are all 0 and the result is +0
//   otherwise   amax = max(amax, 1e-30f), s = (1.0f / amax) * 127.0f,
//               code = clamp(rint(z * s), -128, 127)
//   r = 1.0f / sqrt(canonical_sum(x * x) / float(dim) + eps)
//   y[i] = float(W[i] . codes) * ((scale[i] / s) * r)
//   RoPE rotates pairs (i, i + head_dim / 2) of every head of q and k:
//   lo' = lo * cos - hi * sin, hi' = hi * cos + lo * sin
struct QkvArgs {
  const float* x = nullptr;     // [rows, dim]
  const float* gain = nullptr;  // [dim]
  float eps = 0;
  TernaryMatrix q;  // [heads * head_dim, dim]
  TernaryMatrix k;  // [kv_heads * head_dim, dim]
  TernaryMatrix v;  // [kv_heads * head_dim, dim]
  // [max position + 1, head_dim / 2], made by the host for every backend.
  const float* rope_cos = nullptr;
  const float* rope_sin = nullptr;
  const int32_t* positions = nullptr;  // [rows]
  float* q_out = nullptr;              // [rows, heads * head_dim] out
  float* k_out = nullptr;              // [rows, kv_heads * head_dim] out
  float* v_out = nullptr;              // [rows, kv_heads * head_dim] out
  int rows = 0;
  int dim = 0;
  int head_dim = 0;
  int layer = 0;
  int32_t* fault = nullptr;
  Activations activations = Activations::kInt8Row;
  // [head_dim] or null: each head of q and k goes through RMSNorm before RoPE, with this gain:
  //   r = 1.0f / sqrt(canonical_sum(y * y) / float(head_dim) + eps); y = gain * (y * r)
  const float* q_gain = nullptr;
  const float* k_gain = nullptr;
  // [dim] or null: what takes the place of `gain` for the products k and v. Their rows are then
  // coded by themselves.
  const float* k_input_gain = nullptr;
  const float* v_input_gain = nullptr;
};

// Appends the rows' keys and values to the cache, each at its place: as they are, or turned and
// coded (kernels/integer_attention.h), as the cache's type says. Then causal grouped-query
// attention of each row over positions 0 .. its own. FlashDecoding (arXiv 2311.01282) with a fixed
// order: chunks of kAttentionChunk positions, merged in ascending order.
//   score = canonical_sum over head_dim of q * k, times float32(1 / sqrt(double(head_dim)))
//   per chunk c: m = max score, p = exp(score - m), l = sum p, o = sum p * v (fma), ascending
//   state = chunk 0; then M' = max(M, m), a = exp(M - M'), b = exp(m - M'),
//   L = fma(L, a, l * b), O = fma(O, a, o * b);  out = O / L
// Over codes: docs/numerics.md, "Attention in integers".
struct AttentionArgs {
  const float* q = nullptr;  // [rows, heads * head_dim]
  const float* k = nullptr;  // [rows, kv_heads * head_dim]; null: the cache has them and the values
  const float* v = nullptr;  // [rows, kv_heads * head_dim]
  KvCache kv;                // in and out
  RowPlaces places;
  float* out = nullptr;  // [rows, heads * head_dim] out
  int rows = 0;
  int heads = 0;
  int layer = 0;
  int32_t* fault = nullptr;  // for codes
  // The first rows of the pass, each alone in its sequence. `cuda` has a kernel of its own for
  // them, which reads the keys and values of earlier steps before the kernels of this one have
  // ended. The bits are the same for any lower number.
  int decode_rows = 0;
  // How many positions `cuda` plans for in those rows' contexts; 0: all that the cache has. Longer
  // contexts get the same bits, but take more time.
  int decode_reach = 0;
};

// The decode_reach for `rows` rows the longest of which sees `positions` positions. Few plans serve
// all lengths: many rows fill a GPU however long their contexts are, and some unless those are
// short. The reaches are 256, 1,024, 2,048, 4,096, 16,384, ... positions.
constexpr int decode_reach(int rows, int positions) {
  constexpr int kFewRows = 8;
  constexpr int kSomeRows = 64;
  constexpr int kShortest = 256;
  int reach = kShortest;
  while (reach < positions) reach *= reach == 1024 || reach == 2048 ? 2 : 4;
  return rows <= kFewRows || (rows <= kSomeRows && reach == kShortest) ? reach : 0;
}

// A ternary product added to the residual stream: `attn_out` and `ffn_down`.
//   gain given (a sub-norm): quantised with the folded norm of QkvArgs over `cols` values
//   gain null:  amax = max(max|y|, 1e-5f), s and code as there, result = float(acc) * (scale / s)
//   x += result
struct ProjectArgs {
  const float* y = nullptr;     // [rows, w.cols]
  const float* gain = nullptr;  // [w.cols] or null
  float eps = 0;                // of the sub-norm
  TernaryMatrix w;              // [dim, cols]
  float* x = nullptr;           // [rows, dim] in and out
  int rows = 0;
  int layer = 0;
  int32_t* fault = nullptr;  // also set when x is not finite afterwards
  Activations activations = Activations::kInt8Row;
};

enum class GateActivation : uint8_t {
  kRelu2,  // t = g > 0 ? g : +0;  (t * t) * u
  kSilu,   // (g / (1 + exp(-g))) * u
};

// RMSNorm and quantisation as in QkvArgs, the ternary products gate and up, u = act(gate) * up.
struct FfnUpArgs {
  const float* x = nullptr;     // [rows, dim]
  const float* gain = nullptr;  // [dim]
  float eps = 0;
  TernaryMatrix gate;  // [ffn, dim]
  TernaryMatrix up;    // [ffn, dim]
  GateActivation act = GateActivation::kRelu2;
  float* u = nullptr;  // [rows, ffn] out
  int rows = 0;
  int layer = 0;
  int32_t* fault = nullptr;
  Activations activations = Activations::kInt8Row;
  const float* up_gain = nullptr;  // [dim] or null: likewise of the product up
};

// Final RMSNorm and the head, for the rows that are asked for.
//   r = 1.0f / sqrt(canonical_sum(x * x) / float(dim) + eps);  normed = gain * (x * r)
//   logits[v] = canonical_sum over dim of w[v] * normed; of a ternary head: the product of
//   Activations::kInt16Group, of `normed` without a gain
//   argmax = the lowest id among the largest logits, ids in `banned` left out; -0 equals +0
struct HeadArgs {
  const float* x = nullptr;           // [input rows, dim]
  const int32_t* row_list = nullptr;  // [rows]: which rows of x
  const float* gain = nullptr;        // [dim]
  float eps = 0;
  DenseMatrix w;                    // [vocab, dim]; without data: the head is `ternary`
  float* normed = nullptr;          // [rows, dim] out
  float* logits = nullptr;          // [rows, vocab] out
  int32_t* argmax = nullptr;        // [rows] out, or null
  const int32_t* banned = nullptr;  // [n_banned] ids that argmax may not choose
  int n_banned = 0;
  int rows = 0;
  int layers = 0;
  int32_t* fault = nullptr;
  TernaryMatrix ternary = {};  // [vocab, dim]
};

// The arg-max of HeadArgs, the same id always, for fewer bytes: the certified head bounds every
// logit, and only the rows whose upper bound reaches the largest lower bound are computed from `w`
// (kernels/certified_head.h, docs/numerics.md). `fault` has the meaning it has in HeadArgs: a logit
// that is not finite has no finite bound, so its row is computed. `ref` has the full head only.
struct CertifiedHeadArgs {
  HeadArgs head;  // argmax not null; `logits` is scratch and ends as upper bounds
  CertifiedHead certified;
  int32_t* rescored = nullptr;  // [rows] out: rows of the head computed from `w`
};

// ---- Choosing ids ---------------------------------------------------------------------------

// How the ids of a sequence are chosen, ready for the ops (engine/sampling.h has what users say).
struct ChoiceRule {
  uint64_t seed = 0;
  uint64_t top_p = 0;             // share of the total, times 2^64; 0: all of it
  uint64_t min_weight = 1;        // the smallest weight that stays
  float inverse_temperature = 0;  // of a sampled sequence
  int32_t samples = 0;            // 0: the arg-max of the adjusted logits
  int32_t top_k = 0;              // 0: all
  float repetition = 1;
  float frequency = 0;
  float presence = 0;
  int32_t marks = 0;     // 0: no penalty, bias or ban, so no marks are read or kept
  int32_t n_biases = 0;  // entries of the sequence's list
};

// Added to the logit of an id before anything else.
struct LogitBias {
  int32_t id;
  float bias;
};
inline constexpr int kMaxBiases = 1024;  // of a sequence

// Chooses an id from each row of logits, by the rule of the row's sequence (kernels/choice.h has
// the functions):
//   1. a = adjusted_logit: ban, bias, repetition, frequency and presence penalty; no id left: -1
//   2. samples == 0: the id with the largest a; ends here
//   3. w = logit_weight(a, largest a, inverse_temperature), an integer
//   4. top_k: the first top_k in the order of falling a stay
//   5. top_p: in the same order the first ones stay, as few as reach top_p_sum(all that are left)
//   6. those with w >= min_weight stay
//   7. the id: in ascending order the first whose running sum of w exceeds
//      share_of(all that are left, random_bits(seed, position of the new id))
// Of equal values of a the lower id comes first.
struct ChooseArgs {
  const float* logits = nullptr;      // [rows, vocab], finite
  const int32_t* row_list = nullptr;  // [rows]: which rows of the pass
  RowPlaces places;                   // of the pass
  const ChoiceRule* rules = nullptr;  // [sequences]
  // [sequences, vocab]: what a sequence has had of each id (choice.h); 0 elsewhere.
  const uint16_t* marks = nullptr;
  const LogitBias* biases = nullptr;  // [sequences, kMaxBiases], in ascending order of ids
  int32_t* ids = nullptr;             // [rows] out
  int rows = 0;
  int vocab = 0;
};

// The ids of ChooseArgs on the logits of HeadArgs, the same always, for fewer bytes. For rules that
// keep few ids (most_kept(), kernels/choice.h; `cpu` keeps_by_weight() as well): the certified head
// bounds every logit, and only the rows of the head that may be among those kept are computed from
// `w`, and those of ids with marks.
// `fault` as in CertifiedHeadArgs. `ref` has the full head and ChooseArgs only.
struct CertifiedChooseArgs {
  HeadArgs head;  // without argmax and banned; `logits` is scratch
  CertifiedHead certified;
  ChooseArgs choose;            // `logits` is not read; row_list, rows and vocab are the head's
  int32_t* rescored = nullptr;  // [rows] out: rows of the head computed from `w`
};

// Counts the chosen ids in the marks of their sequences (count_choice(), choice.h): once for a
// pass, at its end, and only where it has met no fault, because such a pass may be run again.
struct CountArgs {
  const int32_t* ids = nullptr;        // [rows] by choose
  const int32_t* row_list = nullptr;   // [rows]: which rows of the pass, each of another sequence
  const int32_t* sequences = nullptr;  // of each row of the pass
  const ChoiceRule* rules = nullptr;   // [sequences]
  uint16_t* marks = nullptr;           // [sequences, vocab] in and out
  const int32_t* fault = nullptr;
  int rows = 0;
  int vocab = 0;
};

// What the log-probabilities of a row are made of: l - largest - ln(sum / 2^kWeightBits).
struct LogprobSums {
  uint64_t sum;   // of logit_weight(logit, largest, 1)
  float largest;  // logit
  float chosen;   // logit of the row's id; 0 where that is -1
};
struct LogprobLogit {
  int32_t id;
  float logit;
};
inline constexpr int kMaxTopLogprobs = 1024;

// For each row of logits, as the model gave them, the sums above and the n_top largest logits, of
// equal ones those of lower ids, in any order.
struct LogprobArgs {
  const float* logits = nullptr;  // [rows, vocab], finite
  const int32_t* ids = nullptr;   // [rows] chosen, or -1
  LogprobSums* sums = nullptr;    // [rows] out
  LogprobLogit* top = nullptr;    // [rows, n_top] out
  int n_top = 0;                  // at most kMaxTopLogprobs and vocab
  int rows = 0;
  int vocab = 0;
};

}  // namespace edgellm
