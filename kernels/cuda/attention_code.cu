// Before attention of many rows: their queries into codes, their keys and values into the cache.
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/code_row.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace edgellm::cuda {
namespace {

constexpr int kCodeThreads = 256;
constexpr int kCodeWarps = kCodeThreads / 32;
constexpr int kCodeRows = 16;  // of a block: the positions of a 16-byte word of values
constexpr int kWarpCodeRows = kCodeRows / kCodeWarps;
static_assert(kCodeRows == kRowsCodedTogether);

// Rows first .. first + rows - 1 of one head: a query head, or the keys or the values of a kv head.
struct CodeItem {
  int first, rows;
  int head;
};

// A warp's rows of the item, all of them before it works on one: the warp waits for memory once.
template <int kSlabs>
__device__ __forceinline__ void load_rows(WarpRow<kSlabs> (&rows)[kWarpCodeRows], const float* from,
                                          const CodeItem& item, int heads, int head_dim) {
#pragma unroll
  for (int i = 0; i < kWarpCodeRows; ++i) {
    const int r = min(static_cast<int>(threadIdx.x) / 32 + i * kCodeWarps, item.rows - 1);
    rows[i].load(from + (static_cast<size_t>(item.first + r) * static_cast<size_t>(heads) +
                         static_cast<size_t>(item.head)) *
                            static_cast<size_t>(head_dim),
                 head_dim);
  }
}

template <int kSlabs>
__device__ __forceinline__ void code_query(const AttentionArgs& args, const CodedQueries& out,
                                           float scale, WarpRow<kSlabs>& row, int row_index,
                                           int head, int slabs) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const CodedRow<kSlabs> coded(row, RowKind::kQuery, args.kv.head_dim, args.kv.type);
  const size_t query =
      static_cast<size_t>(row_index) * static_cast<size_t>(args.heads) + static_cast<size_t>(head);
  auto* codes = reinterpret_cast<uint8_t*>(out.codes) +
                query * static_cast<size_t>(query_code_bytes(32 * slabs));
#pragma unroll
  for (int j = 0; j < kSlabs; ++j) {
    if (j >= slabs) break;
    codes[64 * j + lane] = digit_byte<2>(coded.code[j], 0);
    codes[64 * j + 32 + lane] = digit_byte<2>(coded.code[j], 1);
  }
  if (lane == 0) out.factors[query] = coded.factor(scale, args.kv.type);
}

template <int kSlabs, int kDigits>
__device__ __forceinline__ void append_key(const AttentionArgs& args, WarpRow<kSlabs>& row,
                                           int row_index, int kv_head, int slabs) {
  const KvCache& kv = args.kv;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const CodedRow<kSlabs> coded(row, RowKind::kKey, kv.head_dim, kv.type);
  const int position = args.places.position[row_index];
  const size_t number = kv.tile_number(args.places.sequence[row_index], position, kv_head);
  uint8_t* keys = static_cast<uint8_t*>(kv.k) + number * kv.tile_elements() * kDigits;
#pragma unroll
  for (int j = 0; j < kSlabs; ++j) {
    if (j >= slabs) break;
#pragma unroll
    for (int digit = 0; digit < kDigits; ++digit) {
      keys[key_byte(position, lane + 32 * j, digit, kDigits)] =
          digit_byte<kDigits>(coded.code[j], digit);
    }
  }
  if (lane != 0) return;
  kv.units_of(number)[position % kAttentionChunk] = coded.unit.unit;
  if (!coded.finite) set_fault(args.fault, args.layer + 1);
}

// Codes of a block's rows of values, before they are transposed.
template <int kSlabs>
struct ValueCodes {
  int16_t code[kCodeRows][32 * kSlabs];
};

template <int kSlabs, int kDigits>
__device__ __forceinline__ void append_values(const AttentionArgs& args, const CodeItem& item,
                                              int slabs, ValueCodes<kSlabs>& codes) {
  const KvCache& kv = args.kv;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  WarpRow<kSlabs> rows[kWarpCodeRows];
  load_rows(rows, args.v, item, kv.kv_heads, kv.head_dim);
#pragma unroll
  for (int i = 0; i < kWarpCodeRows; ++i) {
    const int r = static_cast<int>(threadIdx.x) / 32 + i * kCodeWarps;
    if (r >= item.rows) break;
    const int row_index = item.first + r;
    WarpRow<kSlabs>& row = rows[i];
    const CodedRow<kSlabs> coded(row, RowKind::kValue, kv.head_dim, kv.type);
#pragma unroll
    for (int j = 0; j < kSlabs; ++j) {
      codes.code[r][lane + 32 * j] = static_cast<int16_t>(coded.code[j]);
    }
    if (lane != 0) continue;
    const int position = args.places.position[row_index];
    float* units =
        kv.units_of(kv.tile_number(args.places.sequence[row_index], position, item.head)) +
        position % kAttentionChunk;
    units[kAttentionChunk] = coded.unit.unit;
    units[2 * kAttentionChunk] = coded.unit.per_unit;
    if (!coded.finite) set_fault(args.fault, args.layer + 1);
  }
  // The positions of a whole word, in their order?
  const int first_position = args.places.position[item.first];
  bool in_order = item.rows == kCodeRows && first_position % kCodeRows == 0;
  if (lane < item.rows) {
    in_order = in_order && args.places.position[item.first + lane] == first_position + lane &&
               args.places.sequence[item.first + lane] == args.places.sequence[item.first];
  }
  const bool whole_words = __syncthreads_and(in_order);

  const int dims = 32 * slabs;
  for (int i = static_cast<int>(threadIdx.x); i < kDigits * dims; i += kCodeThreads) {
    const int d = i % dims;
    const int digit = i / dims;
    if (whole_words) {
      uint32_t word[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        word[w] = 0;
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          word[w] |= static_cast<uint32_t>(digit_byte<kDigits>(codes.code[4 * w + b][d], digit))
                     << 8 * b;
        }
      }
      const size_t tile =
          kv.tile_offset(args.places.sequence[item.first], first_position, item.head);
      uint8_t* to = static_cast<uint8_t*>(kv.v) + tile * kDigits +
                    value_byte(first_position, d, digit, kDigits, dims);
      *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
      continue;
    }
    for (int r = 0; r < item.rows; ++r) {
      const int position = args.places.position[item.first + r];
      const size_t tile = kv.tile_offset(args.places.sequence[item.first + r], position, item.head);
      static_cast<uint8_t*>(kv.v)[tile * kDigits + static_cast<size_t>(value_byte(
                                                       position, d, digit, kDigits, dims))] =
          digit_byte<kDigits>(codes.code[r][d], digit);
    }
  }
}

// Number `kind` of the kinds of rows: the query heads, then the keys and the values of the kv
// heads.
template <int kSlabs, int kDigits>
__device__ __forceinline__ void code_rows(const AttentionArgs& args, const CodedQueries& out,
                                          float scale, int first, int kind,
                                          ValueCodes<kSlabs>& codes) {
  const int slabs = args.kv.tile_dims() / 32;
  const int rows = min(kCodeRows, args.rows - first);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int kv_heads = args.kv.kv_heads;
  if (kind >= args.heads + kv_heads) {
    append_values<kSlabs, kDigits>(args, {first, rows, kind - args.heads - kv_heads}, slabs, codes);
    return;
  }
  const bool is_query = kind < args.heads;
  const CodeItem item{first, rows, is_query ? kind : kind - args.heads};
  WarpRow<kSlabs> loaded[kWarpCodeRows];
  load_rows(loaded, is_query ? args.q : args.k, item, is_query ? args.heads : kv_heads,
            args.kv.head_dim);
#pragma unroll
  for (int i = 0; i < kWarpCodeRows; ++i) {
    const int r = warp + i * kCodeWarps;
    if (r >= rows) break;
    if (is_query) {
      code_query<kSlabs>(args, out, scale, loaded[i], first + r, item.head, slabs);
    } else {
      append_key<kSlabs, kDigits>(args, loaded[i], first + r, item.head, slabs);
    }
  }
}

// The grid: x sixteen rows, y the kind of row.
template <int kSlabs, int kDigits>
__global__ void __launch_bounds__(kCodeThreads)
    code_kernel(AttentionArgs args, CodedQueries out, float scale) {
  __shared__ ValueCodes<kSlabs> codes;
  let_next_start();
  wait_for_previous();
  code_rows<kSlabs, kDigits>(args, out, scale, static_cast<int>(blockIdx.x) * kCodeRows,
                             static_cast<int>(blockIdx.y), codes);
}

template <int kSlabs, int kDigits>
bool launch_if(const CodePlan& plan, const AttentionArgs& args, const CodedQueries& out,
               cudaStream_t stream) {
  if (plan.dims != 32 * kSlabs || digit_count(args.kv.type) != kDigits) return false;
  launch(code_kernel<kSlabs, kDigits>, plan.launch, stream, args, out,
         head_scale(args.kv.head_dim));
  return true;
}

}  // namespace

void code_rows(const CodePlan& plan, const AttentionArgs& args, const CodedQueries& out,
               cudaStream_t stream) {
  require_instance(
      launch_if<2, 1>(plan, args, out, stream) || launch_if<4, 1>(plan, args, out, stream) ||
      launch_if<8, 1>(plan, args, out, stream) || launch_if<2, 2>(plan, args, out, stream) ||
      launch_if<4, 2>(plan, args, out, stream) || launch_if<8, 2>(plan, args, out, stream));
}

}  // namespace edgellm::cuda
