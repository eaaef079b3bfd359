// Before attention of many rows: their queries into codes, their keys and values into the cache. Of
// heads with 64, 128 or 256 dimensions a warp has several rows at once: what is done once for a
// row, such as its unit, makes most of the instructions.
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
  const CodedRow<WarpRow<kSlabs>> coded(row, RowKind::kQuery, args.kv.head_dim, args.kv.type);
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
  const CodedRow<WarpRow<kSlabs>> coded(row, RowKind::kKey, kv.head_dim, kv.type);
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
  alignas(16) int16_t code[kCodeRows][32 * kSlabs];
};

// The units of row r of an item's values, by one thread.
__device__ __forceinline__ void append_value_units(const AttentionArgs& args, const CodeItem& item,
                                                   int r, const CodeUnit& unit) {
  const KvCache& kv = args.kv;
  const int position = args.places.position[item.first + r];
  float* units =
      kv.units_of(kv.tile_number(args.places.sequence[item.first + r], position, item.head)) +
      position % kAttentionChunk;
  units[kAttentionChunk] = unit.unit;
  units[2 * kAttentionChunk] = unit.per_unit;
}

// Writes the codes of an item's values to the cache, by all threads of the block.
template <int kSlabs, int kDigits>
__device__ __forceinline__ void write_values(const AttentionArgs& args, const CodeItem& item,
                                             int slabs, int threads,
                                             const ValueCodes<kSlabs>& codes) {
  const KvCache& kv = args.kv;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The positions of a whole word, in their order?
  const int first_position = args.places.position[item.first];
  bool in_order = item.rows == kCodeRows && first_position % kCodeRows == 0;
  if (lane < item.rows) {
    in_order = in_order && args.places.position[item.first + lane] == first_position + lane &&
               args.places.sequence[item.first + lane] == args.places.sequence[item.first];
  }
  const bool whole_words = __syncthreads_and(in_order);

  const int dims = 32 * slabs;
  for (int i = static_cast<int>(threadIdx.x); i < kDigits * dims; i += threads) {
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

// Codes an item's values and appends them, a warp a row.
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
    const CodedRow<WarpRow<kSlabs>> coded(rows[i], RowKind::kValue, kv.head_dim, kv.type);
#pragma unroll
    for (int j = 0; j < kSlabs; ++j) {
      codes.code[r][lane + 32 * j] = static_cast<int16_t>(coded.code[j]);
    }
    if (lane != 0) continue;
    append_value_units(args, item, r, coded.unit);
    if (!coded.finite) set_fault(args.fault, args.layer + 1);
  }
  write_values<kSlabs, kDigits>(args, item, slabs, kCodeThreads, codes);
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

// ---- Heads of 32 kSlabs dimensions, several rows a warp -----------------------------------------

// The codes of the eight dimensions of a query that a lane has.
template <int kSlabs>
__device__ __forceinline__ void store_query(const CodedQueries& out, size_t query,
                                            const int (&code)[8]) {
  const int d = 8 * LanesRow<kSlabs>::lane();
  uint8_t* to = reinterpret_cast<uint8_t*>(out.codes) +
                query * static_cast<size_t>(query_code_bytes(32 * kSlabs)) + d / kSlabDims * 64 +
                d % kSlabDims;
  *reinterpret_cast<uint2*>(to) = digit_bytes<2>(code, 0);
  *reinterpret_cast<uint2*>(to + kSlabDims) = digit_bytes<2>(code, 1);
}

// The same of a key. Returns the number of its tile.
template <int kSlabs, int kDigits>
__device__ __forceinline__ size_t store_key(const AttentionArgs& args, int row, int kv_head,
                                            const int (&code)[8]) {
  const KvCache& kv = args.kv;
  const int position = args.places.position[row];
  const size_t number = kv.tile_number(args.places.sequence[row], position, kv_head);
  uint8_t* keys = static_cast<uint8_t*>(kv.k) +
                  number * static_cast<size_t>(code_tile_bytes(32 * kSlabs, kDigits));
#pragma unroll
  for (int digit = 0; digit < kDigits; ++digit) {
    uint8_t* to = keys + key_byte(position, 8 * LanesRow<kSlabs>::lane(), digit, kDigits);
    *reinterpret_cast<uint2*>(to) = digit_bytes<kDigits>(code, digit);
  }
  return number;
}

// Eight codes as int16.
__device__ __forceinline__ uint4 value_codes(const int (&code)[8]) {
  const auto two = [&](int i) {
    return __byte_perm(static_cast<uint32_t>(code[i]), static_cast<uint32_t>(code[i + 1]), 0x5410);
  };
  return make_uint4(two(0), two(2), two(4), two(6));
}

// As code_rows(), by a block that has the lanes of sixteen rows.
template <int kSlabs, int kDigits>
__device__ __forceinline__ void code_lanes_rows(const AttentionArgs& args, const CodedQueries& out,
                                                float scale, int first, int kind,
                                                ValueCodes<kSlabs>& codes) {
  using Row = LanesRow<kSlabs>;
  constexpr int kDims = 32 * kSlabs;
  const KvCache& kv = args.kv;
  const int kv_kind = kind - args.heads;
  const RowKind row_kind = kv_kind < 0             ? RowKind::kQuery
                           : kv_kind < kv.kv_heads ? RowKind::kKey
                                                   : RowKind::kValue;
  const bool is_query = row_kind == RowKind::kQuery;
  const int heads = is_query ? args.heads : kv.kv_heads;
  const CodeItem item{first, min(kCodeRows, args.rows - first),
                      is_query ? kind : kv_kind % kv.kv_heads};
  const int r = static_cast<int>(threadIdx.x) / Row::kLanes;
  const bool exists = r < item.rows;
  const auto index = [&](int row) {
    return static_cast<size_t>(row) * static_cast<size_t>(heads) + static_cast<size_t>(item.head);
  };
  const float* from = is_query ? args.q : row_kind == RowKind::kKey ? args.k : args.v;
  Row row;
  row.load(from + index(first + min(r, item.rows - 1)) * kDims);
  const CodedRow<Row> coded(row, row_kind, kDims, kv.type);
  const bool leads = exists && Row::lane() == 0;  // writes what there is once for a row
  if (leads && !is_query && !coded.finite) set_fault(args.fault, args.layer + 1);
  if (is_query) {
    if (exists) store_query<kSlabs>(out, index(first + r), coded.code);
    if (leads) out.factors[index(first + r)] = coded.factor(scale, kv.type);
  } else if (row_kind == RowKind::kKey) {
    if (!exists) return;
    const size_t number = store_key<kSlabs, kDigits>(args, first + r, item.head, coded.code);
    if (leads) {
      kv.units_of(number)[args.places.position[first + r] % kAttentionChunk] = coded.unit.unit;
    }
  } else {
    *reinterpret_cast<uint4*>(&codes.code[r][8 * Row::lane()]) = value_codes(coded.code);
    if (leads) append_value_units(args, item, r, coded.unit);
    write_values<kSlabs, kDigits>(args, item, kSlabs, kCodeRows * Row::kLanes, codes);
  }
}

// ---- The kernels --------------------------------------------------------------------------------

// The grid: x sixteen rows, y the kind of row.
template <int kSlabs, int kDigits>
__global__ void __launch_bounds__(kCodeRows* LanesRow<kSlabs>::kLanes)
    code_lanes_kernel(AttentionArgs args, CodedQueries out, float scale) {
  __shared__ ValueCodes<kSlabs> codes;
  let_next_start();
  wait_for_previous();
  code_lanes_rows<kSlabs, kDigits>(args, out, scale, static_cast<int>(blockIdx.x) * kCodeRows,
                                   static_cast<int>(blockIdx.y), codes);
}

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
  launch(plan.in_lanes ? code_lanes_kernel<kSlabs, kDigits> : code_kernel<kSlabs, kDigits>,
         plan.launch, stream, args, out, head_scale(args.kv.head_dim));
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
