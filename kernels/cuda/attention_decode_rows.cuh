// The rows of a decode pass (attention_decode.cu): codes of the queries, and of the key and the
// value that a row appends to the cache.
#pragma once

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/code_row.cuh"
#include "kernels/cuda/device/common.cuh"

namespace edgellm::cuda {

// A row that a warp codes: the item's queries, its key and its value are numbered together. Where a
// warp has a second row, neither is the key or the value, whose writing takes long.
struct RowToCode {
  RowKind kind;
  const float* values;

  __device__ __forceinline__ static int key_number(const DecodeItem& item) {
    return min(item.heads, 2);
  }
  __device__ __forceinline__ static int value_number(const DecodeItem& item) {
    return key_number(item) + 1;
  }
  // The item's query head that has this number.
  __device__ __forceinline__ static int head_of(const DecodeItem& item, int number) {
    return number < key_number(item) ? number : number - 2;
  }

  __device__ __forceinline__ RowToCode(const AttentionArgs& args, const DecodeItem& item,
                                       int number) {
    kind = number == key_number(item)     ? RowKind::kKey
           : number == value_number(item) ? RowKind::kValue
                                          : RowKind::kQuery;
    const bool is_query = kind == RowKind::kQuery;
    const float* rows = is_query ? args.q : kind == RowKind::kKey ? args.k : args.v;
    const int row = is_query ? item.row * args.heads + item.first_head + head_of(item, number)
                             : item.row * args.kv.kv_heads + item.kv_head;
    values = rows + static_cast<size_t>(row) * static_cast<size_t>(args.kv.head_dim);
  }
};

// Where a lane puts its bytes and its unit of the row's new key or value: into the tile of the
// cache, and of shared memory where that was fetched before.
template <class D>
struct AppendPlace {
  uint8_t* cached[D::kDigits];  // of dimension `lane`; those 32 further on lie `stride` apart
  int staged[D::kDigits];       // in the block's memory, below 0: nowhere
  int stride;
  float* unit;
  float* staged_unit;  // or null
  // Barriers of the tile and of its units.
  uint64_t* tile_arrived;
  uint64_t* units_arrived;

  __device__ __forceinline__ AppendPlace(const KvCache& kv, const DecodeItem& item,
                                         const typename D::Stream& stream, bool is_value,
                                         int slabs) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const size_t number = kv.tile_number(item.sequence, item.position, item.kv_head);
    const int c = item.end - 1 - item.begin;
    const int tile = item.position % kIntegerChunk / kAttentionChunk;
    uint8_t* const codes = static_cast<uint8_t*>(is_value ? kv.v : kv.k) +
                           number * static_cast<size_t>(stream.tile_bytes());
    const bool is_staged = c < D::kRound && (!is_value || stream.n_slots > 2);
    const int in_memory =
        static_cast<int>(stream.tile(c, (is_value ? 2 : 0) + tile) - stream.memory);
#pragma unroll
    for (int digit = 0; digit < D::kDigits; ++digit) {
      const int at = is_value ? value_byte(item.position, lane, digit, D::kDigits, 32 * slabs)
                              : key_byte(item.position, lane, digit, D::kDigits);
      cached[digit] = codes + at;
      staged[digit] = is_staged ? in_memory + at : -1;
    }
    stride = (is_value ? 32 : kAttentionChunk) * slab_row_bytes(D::kDigits);
    const int kind = is_value ? 1 + lane % 2 : 0;
    const int in_tile = item.position % kAttentionChunk;
    unit = kv.units_of(number) + kind * kAttentionChunk + in_tile;
    staged_unit = c < D::kRound ? &stream.units[c][tile][kind][in_tile] : nullptr;
    tile_arrived = stream.barriers.arrived + stream.pair(c, is_value ? 1 : 0);
    units_arrived = stream.barriers.arrived + stream.pair(c, 0);
  }

  // Writes a key or a value, by a warp.
  __device__ __forceinline__ void write(const CodedRow<WarpRow<D::kSlabs>>& coded, bool is_value,
                                        int slabs, uint8_t* memory) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool is_staged = staged[0] >= 0;
    // The fetched tile must not overwrite the new row.
    if (is_staged) first_phase_ended(tile_arrived);
#pragma unroll
    for (int j = 0; j < D::kSlabs; ++j) {
      if (!D::kExact && j >= slabs) break;
#pragma unroll
      for (int digit = 0; digit < D::kDigits; ++digit) {
        const uint8_t byte = digit_byte<D::kDigits>(coded.code[j], digit);
        cached[digit][j * stride] = byte;
        if (is_staged) memory[staged[digit] + j * stride] = byte;
      }
    }
    if (lane <= (is_value ? 1 : 0)) {
      const float of_lane = lane == 0 ? coded.unit.unit : coded.unit.per_unit;
      *unit = of_lane;
      if (staged_unit != nullptr) {
        first_phase_ended(units_arrived);
        *staged_unit = of_lane;
      }
    }
  }

  // Whether later copies of the copy engine have to see what was written: they read this row from
  // the cache where it is not staged, and with two slots they put values over a staged key. With
  // more slots no copy follows a staged row.
  __device__ __forceinline__ bool meets_copies(int n_slots) const {
    return staged[0] < 0 || n_slots == 2;
  }
};

// Codes a row: a query into shared memory, a key or a value also into the cache.
template <class D>
__device__ __forceinline__ void code_row(const AttentionArgs& args, const DecodeItem& item,
                                         int number, RowKind kind, WarpRow<D::kSlabs>& values,
                                         float scale, const AppendPlace<D>& place, int slabs,
                                         uint8_t* memory, typename D::Shared& shared) {
  const KvCache& kv = args.kv;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const CodedRow<WarpRow<D::kSlabs>> coded(values, kind, kv.head_dim, kv.type);
  if (kind != RowKind::kQuery) {
    place.write(coded, kind == RowKind::kValue, slabs, memory);
    if (lane == 0 && !coded.finite) set_fault(args.fault, args.layer + 1);
    return;
  }
  const int head = RowToCode::head_of(item, number);
#pragma unroll
  for (int j = 0; j < D::kSlabs; ++j) {
    shared.q[2 * head][lane + 32 * j] = digit_byte<2>(coded.code[j], 0);
    shared.q[2 * head + 1][lane + 32 * j] = digit_byte<2>(coded.code[j], 1);
  }
  if (lane == 0) shared.factor[head] = coded.factor(scale, kv.type);
}

// Codes the queries of the item's heads, and the row's key and value where the item appends them.
// A warp's first row, and `place` where that is a key or a value, were found before the wait for
// the previous kernel. A second row, which is a query, is loaded before the first is coded.
template <class D>
__device__ __forceinline__ void code_rows(const AttentionArgs& args, const DecodeItem& item,
                                          RowToCode row, float scale, bool appends,
                                          const AppendPlace<D>& place, int slabs, uint8_t* memory,
                                          typename D::Shared& shared) {
  const int n_rows = item.heads + 2;
  int number = static_cast<int>(threadIdx.x) / 32;
  if (number >= n_rows) return;
  const bool wants_first = row.kind == RowKind::kQuery || appends;
  WarpRow<D::kSlabs> values{};
  if (wants_first) values.load(row.values, args.kv.head_dim);
  if constexpr (D::kWarps >= D::kHeads + 2) {
    if (!wants_first) return;
    code_row<D>(args, item, number, row.kind, values, scale, place, slabs, memory, shared);
  } else {
    const bool has_second = number + D::kWarps < n_rows;
    WarpRow<D::kSlabs> second{};
    if (has_second) {
      second.load(RowToCode(args, item, number + D::kWarps).values, args.kv.head_dim);
    }
#pragma unroll 1
    for (int i = 0; i < (has_second ? 2 : 1); ++i) {
      if (i > 0 || wants_first) {
        code_row<D>(args, item, number, row.kind, values, scale, place, slabs, memory, shared);
      }
      number += D::kWarps;
      row.kind = RowKind::kQuery;
      values = second;
    }
  }
}

}  // namespace edgellm::cuda
