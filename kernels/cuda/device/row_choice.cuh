// What a choice among the ids of a row is made of: values of the row, the border of a filter, sums.
// kBlocks blocks have a row together, each a part of it; every warp has neighbouring ids.
#pragma once

#include "kernels/choice.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/plan/choose.h"

namespace edgellm::cuda {

inline constexpr int kChooseWarps = kChooseThreads / 32;
static_assert(kChooseWarps == 32, "a lane for each warp's sum");

// ---- Sums over a warp and a block -----------------------------------------------------------

// The sum of the lanes up to this one.
__device__ __forceinline__ uint64_t scan_warp(uint64_t value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int width = 1; width < 32; width *= 2) {
    const uint64_t below = __shfl_up_sync(kAllLanes, value, width);
    if (lane >= width) value += below;
  }
  return value;
}

// The sums of a block's warps, as one of its warps sees them.
struct WarpSums {
  uint64_t before;  // of the warps below this one
  uint64_t total;
};
// `sums` [kChooseWarps] holds the sum of each warp, and the block has met since.
__device__ __forceinline__ WarpSums look_at(const uint64_t* sums) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const uint64_t mine = sums[threadIdx.x % 32];
  const uint64_t up_to = scan_warp(mine);
  return {__shfl_sync(kAllLanes, up_to - mine, warp), __shfl_sync(kAllLanes, up_to, 31)};
}

// ---- The blocks of a row --------------------------------------------------------------------

// What the blocks of a row tell each other. Each has one writer between two meetings.
struct RowNotes {
  uint64_t best;         // logit_key() of the block's largest logit
  uint64_t cells;        // sum of the block's cells
  uint32_t border_cell;  // by the block that has it
  uint64_t border_wanted;
  uint64_t ties;
  uint64_t weights;
  uint64_t warps[kChooseWarps];  // of this block alone
};

template <int kBlocks>
struct RowBlocks {
  __device__ static int rank() { return kBlocks == 1 ? 0 : cluster_rank(); }
  // All threads of the row meet; what they wrote before is seen after.
  __device__ static void meet() {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
      cluster_arrive();
      cluster_wait();
    }
  }
  // What stands in block `rank` where `here` is in this one.
  template <class T>
  __device__ static T look(const T& here, int rank) {
    if constexpr (kBlocks == 1) {
      return here;
    } else {
      return look_in_block(rank, &here);
    }
  }
};

// ---- A row ----------------------------------------------------------------------------------

// Where the order of a filter is cut: ids of higher rank stay, and of those with this rank the
// first `ties`. The default keeps all.
struct Border {
  uint32_t rank = 0;
  uint64_t ties = ~uint64_t{0};

  __device__ bool cuts() const { return ties != ~uint64_t{0}; }
};

template <int kBlocks>
class ChoiceRow {
 public:
  using Blocks = RowBlocks<kBlocks>;

  // `memory`: [kBorderBytes], then room for this block's part where its values are cached.
  __device__ ChoiceRow(int vocab, void* memory, RowNotes& notes)
      : low_(static_cast<uint32_t*>(memory)),
        high_(low_ + kBorderCells),
        values_(reinterpret_cast<float*>(high_ + kBorderCells)),
        notes_(notes),
        part_begin_(Blocks::rank() * choose_part(vocab, kBlocks)) {
    const int warp_part = choose_part(vocab, kBlocks) / kChooseWarps;
    begin_ = min(part_begin_ + static_cast<int>(threadIdx.x) / 32 * warp_part, vocab);
    end_ = min(begin_ + warp_part, vocab);
  }

  // Calls `with(id, value)` for the ids of this lane, in ascending order. `value_of(id)` has the
  // value where it is not cached.
  template <class ValueOf, class With>
  __device__ __forceinline__ void for_ids(const ValueOf& value_of, bool cached, With with) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (cached) {
#pragma unroll 4
      for (int id = begin_ + lane; id < end_; id += 32) with(id, values_[id - part_begin_]);
    } else {
#pragma unroll 4
      for (int id = begin_ + lane; id < end_; id += 32) with(id, value_of(id));
    }
  }

  // Caches the values where that is wanted; the key of the largest one of the row, 0 where all are
  // -inf.
  template <class ValueOf>
  __device__ uint64_t find_best(const ValueOf& value_of, bool cached) {
    uint64_t best = 0;
    for_ids(value_of, false, [&](int id, float value) {
      if (cached) values_[id - part_begin_] = value;
      if (value != -INFINITY) best = max(best, logit_key(value, id));
    });
    for (int width = 16; width >= 1; width /= 2) {
      best = max(best, __shfl_xor_sync(kAllLanes, best, width));
    }
    if (threadIdx.x % 32 == 0) notes_.warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x < 32) {
      best = notes_.warps[threadIdx.x];
      for (int width = 16; width >= 1; width /= 2) {
        best = max(best, __shfl_xor_sync(kAllLanes, best, width));
      }
      if (threadIdx.x == 0) notes_.best = best;
    }
    Blocks::meet();
    for (int rank = 0; rank < kBlocks; ++rank) best = max(best, Blocks::look(notes_.best, rank));
    return best;
  }

  // The rank at which the sum of `measure(value)`, over ids from the highest rank down, reaches
  // `wanted_of(sum of all)`, which is above 0 and at most that sum. Ids are those inside `within`;
  // `tie_measure` is the measure of those at its border. `ties` of the result: what ids of that
  // rank have to give.
  template <class ValueOf, class Measure, class WantedOf>
  __device__ Border find_border(const ValueOf& value_of, bool cached, const Border& within,
                                uint64_t tie_measure, Measure measure, WantedOf wanted_of) {
    uint32_t rank = 0;
    uint64_t wanted = 0;
    int shift = 32;
#pragma unroll 1
    while (shift > 0) {
      const int above = shift;  // bits of the rank from here on are known
      shift = max(shift - kBorderBits, 0);
      const uint32_t cells = 1u << (above - shift);
      const auto is_in = [&](uint32_t of) { return above == 32 || of >> above == rank >> above; };
      for (int cell = static_cast<int>(threadIdx.x); cell < 2 * kBorderCells;
           cell += kChooseThreads) {
        low_[cell] = 0;  // and high_, which follows
      }
      __syncthreads();
      for_ids(value_of, cached, [&](int, float value) {
        const uint32_t of = logit_rank(value);
        if (!is_in(of) || (within.cuts() && of <= within.rank)) return;
        add(of >> shift & (cells - 1), measure(value));
      });
      if (within.cuts() && is_in(within.rank) && Blocks::rank() == 0 && threadIdx.x == 0) {
        add(within.rank >> shift & (cells - 1), within.ties * tie_measure);
      }
      Blocks::meet();
      const uint32_t cell = find_cell(above == 32, wanted, wanted_of);
      rank |= cell << shift;
    }
    return {rank, wanted};
  }

  // How many ids of rank border.rank this warp keeps: the row keeps border.ties of them.
  // `mine`: how many this warp has.
  __device__ uint64_t kept_ties(const Border& border, uint64_t mine) {
    const WarpSums here = sum_warps(mine);
    if (threadIdx.x == 0) notes_.ties = here.total;
    Blocks::meet();
    uint64_t before = here.before;
    for (int rank = 0; rank < Blocks::rank(); ++rank) before += Blocks::look(notes_.ties, rank);
    const uint64_t left = border.ties > before ? border.ties - before : 0;
    return min(left, mine);
  }

  // The sum of a value that each warp has, over the row and over what lies below this warp.
  __device__ WarpSums sum_row(uint64_t mine) {
    WarpSums sums = sum_warps(mine);
    if (threadIdx.x == 0) notes_.weights = sums.total;
    Blocks::meet();
    sums.total = 0;
    for (int rank = 0; rank < kBlocks; ++rank) {
      if (rank == Blocks::rank()) sums.before += sums.total;
      sums.total += Blocks::look(notes_.weights, rank);
    }
    return sums;
  }

  __device__ int begin() const { return begin_; }
  __device__ int end() const { return end_; }
  __device__ float cached_value(int id) const { return values_[id - part_begin_]; }

 private:
  // Cells are 64 bits wide, and few additions carry.
  __device__ void add(uint32_t cell, uint64_t value) {
    const auto low = static_cast<uint32_t>(value);
    auto high = static_cast<uint32_t>(value >> 32);
    if (low != 0) high += atomicAdd(low_ + cell, low) > ~low ? 1 : 0;
    if (high != 0) atomicAdd(high_ + cell, high);
  }

  __device__ WarpSums sum_warps(uint64_t mine) {
    __syncthreads();  // notes_.warps is free
    if (threadIdx.x % 32 == 0) notes_.warps[threadIdx.x / 32] = mine;
    __syncthreads();
    return look_at(notes_.warps);
  }

  // The cell of the row at which the sum, from the last cell down, reaches `wanted`; that becomes
  // what the cell has to give. The first time `wanted` is wanted_of(all). A block sums its share of
  // the cells.
  template <class WantedOf>
  __device__ uint32_t find_cell(bool is_first, uint64_t& wanted, WantedOf wanted_of) {
    constexpr int kOwn = kBorderCells / kBlocks;
    constexpr int kEach = kOwn > kChooseThreads ? kOwn / kChooseThreads : 1;
    const int t = static_cast<int>(threadIdx.x);
    const int last = (Blocks::rank() + 1) * kOwn - 1;
    uint64_t own[kEach];
    uint64_t mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      own[i] = 0;
      if (t * kEach + i >= kOwn) continue;
      for (int rank = 0; rank < kBlocks; ++rank) {
        const int cell = last - (t * kEach + i);
        own[i] += static_cast<uint64_t>(Blocks::look(high_[cell], rank)) << 32;
        own[i] += Blocks::look(low_[cell], rank);
      }
      mine += own[i];
    }
    const uint64_t up_to = scan_warp(mine);
    __syncthreads();  // notes_.warps is free
    if (t % 32 == 31) notes_.warps[t / 32] = up_to;
    __syncthreads();
    const WarpSums here = look_at(notes_.warps);
    if (t == 0) notes_.cells = here.total;
    Blocks::meet();

    uint64_t all = 0;
    uint64_t before_block = 0;
    for (int rank = kBlocks - 1; rank >= 0; --rank) {
      if (rank == Blocks::rank()) before_block = all;
      all += Blocks::look(notes_.cells, rank);
    }
    if (is_first) wanted = wanted_of(all);
    int owner = kBlocks - 1;
    uint64_t before_owner = 0;
    while (owner > 0) {
      const uint64_t has = Blocks::look(notes_.cells, owner);
      if (before_owner + has >= wanted) break;
      before_owner += has;
      --owner;
    }
    uint64_t before = before_block + here.before + up_to - mine;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (before < wanted && wanted <= before + own[i]) {
        notes_.border_cell = static_cast<uint32_t>(last - (t * kEach + i));
        notes_.border_wanted = wanted - before;
      }
      before += own[i];
    }
    Blocks::meet();
    wanted = Blocks::look(notes_.border_wanted, owner);
    return Blocks::look(notes_.border_cell, owner);
  }

  uint32_t* low_;   // [kBorderCells]
  uint32_t* high_;  // [kBorderCells]
  float* values_;   // [choose_part()] where they are cached
  RowNotes& notes_;
  int part_begin_;
  int begin_, end_;  // of the warp
};

}  // namespace edgellm::cuda
