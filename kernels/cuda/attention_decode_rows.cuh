// The rows of a decode pass (attention_decode.cu): codes of the queries, and of the key and the
// value that a row appends to the cache.
#pragma once

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device/code_row.cuh"
#include "kernels/cuda/device/common.cuh"

namespace edgellm::cuda {

// A row that a warp codes: number 0 of an item is its key, 1 its value, others its queries.
struct RowToCode {
  RowKind kind;
  const float* values;

  __device__ __forceinline__ RowToCode(const AttentionArgs& args, const DecodeItem& item,
                                       int number) {
    kind = number == 0 ? RowKind::kKey : number == 1 ? RowKind::kValue : RowKind::kQuery;
    const bool is_query = kind == RowKind::kQuery;
    const float* rows = is_query ? args.q : kind == RowKind::kKey ? args.k : args.v;
    const int row = is_query ? item.row * args.heads + item.first_head + number - 2
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
  __device__ __forceinline__ void write(const CodedRow<D::kSlabs>& coded, bool is_value, int slabs,
                                        uint8_t* memory, int n_slots) const {
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
    // For copies of the copy engine from here on: they read this row from the cache where it is not
    // staged, and with two slots they put values over a staged key. With more slots no copy follows
    // a staged row.
    if (!is_staged || n_slots == 2) all_writes_visible_to_copies();
  }
};

// Codes the queries of the item's heads, and the row's key and value where the item appends them.
// A warp's first row, and `place` where that is a key or a value, were found before the wait for
// the previous kernel.
template <class D>
__device__ __forceinline__ void code_rows(const AttentionArgs& args, const DecodeItem& item,
                                          RowToCode next, float scale, bool appends,
                                          const AppendPlace<D>& place, int slabs, int n_slots,
                                          uint8_t* memory, typename D::Shared& shared) {
  const KvCache& kv = args.kv;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / 32; i < item.heads + 2; i += D::kWarps) {
    if (i >= D::kWarps) next = RowToCode(args, item, i);
    const bool is_query = next.kind == RowKind::kQuery;
    if (!is_query && !appends) continue;
    WarpRow<D::kSlabs> row;
    row.load(next.values, kv.head_dim);
    const CodedRow<D::kSlabs> coded(row, next.kind, kv.head_dim, kv.type);
    if (!is_query) {
      place.write(coded, next.kind == RowKind::kValue, slabs, memory, n_slots);
      if (lane == 0 && !coded.finite) set_fault(args.fault, args.layer + 1);
      continue;
    }
    const int head = i - 2;
#pragma unroll
    for (int j = 0; j < D::kSlabs; ++j) {
      shared.q[2 * head][lane + 32 * j] = digit_byte<2>(coded.code[j], 0);
      shared.q[2 * head + 1][lane + 32 * j] = digit_byte<2>(coded.code[j], 1);
    }
    if (lane == 0) shared.factor[head] = coded.factor(scale, kv.type);
  }
}

}  // namespace edgellm::cuda
