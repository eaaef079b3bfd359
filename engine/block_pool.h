// Who has which block of a paged KV cache, and which prompts the blocks hold.
//
// A block that lies wholly within a prompt is known by the ids in it and the block before it, so
// that it is found again by every prompt that begins with the same ids: such prompts hold the same
// blocks. Ids are compared, hashes only find candidates. A block is `computed` once a pass has
// written it; until then the lease that brought it writes it, and the others wait. It is never
// written again, and kept when its last holder has gone, until its memory is needed: then the one
// that was not used for longest goes first.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/backend.h"

namespace edgellm {

class BlockPool {
 public:
  // The blocks of one sequence. Made by take(); goes back with give_back().
  struct Lease {
    std::vector<int32_t> blocks;  // of positions 0 .., kKvBlockPositions each
    int n_found = 0;              // the first ones: brought by other leases
    int n_known = 0;              // the first ones: can be found by others; n_found at least
    uint64_t id = 0;
  };

  explicit BlockPool(int n_blocks);

  static int blocks_for(int64_t n_positions) {
    return static_cast<int>((n_positions + kKvBlockPositions - 1) / kKvBlockPositions);
  }

  // Blocks for `n_positions`, at least one and at least the prompt's. Where `share`, those that
  // hold the prompt's beginning already, but for its last id, are held together with others. Empty
  // where too few blocks are unused.
  std::optional<Lease> take(std::span<const int32_t> prompt_ids, int n_positions, bool share);

  // The prompt's first ids that are in the cache already, and need not be computed. Empty while
  // another lease is still to compute some of them. Where that lease is gone, the answer is what is
  // there, and the rest is this lease's to compute.
  std::optional<int> ready_positions(const Lease& lease);

  // The first `n_positions` of the lease are written.
  void set_computed(const Lease& lease, int n_positions);

  void give_back(const Lease& lease);

  int total() const { return static_cast<int>(blocks_.size()); }
  // Blocks that leases hold.
  int used() const { return total() - static_cast<int>(free_.size() + unused_.size()); }
  // Blocks that no lease holds, kept for prompts to come.
  int kept() const { return static_cast<int>(unused_.size()); }

 private:
  static constexpr int32_t kNone = -1;
  using Ids = std::span<const int32_t, kKvBlockPositions>;

  struct Block {
    int holders = 0;
    bool known = false;  // in index_, with the next four
    bool computed = false;
    uint64_t writer = 0;  // the lease that computes it, 0 for none
    int32_t before = kNone;
    std::array<int32_t, kKvBlockPositions> ids{};
    std::list<int32_t>::iterator unused;  // its place there, where it has no holder
  };

  Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  static Ids ids_of(std::span<const int32_t> prompt_ids, int index);
  static uint32_t hash_of(int32_t before, Ids ids);
  int32_t find(int32_t before, Ids ids) const;
  void forget(int32_t block);
  int32_t take_unused();

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // last in, first out: the memory of few blocks is touched
  // Computed, known and without holder; not used for longest first. A block's holders hold those
  // before it, and give_back() goes from the last to the first: so a block comes before those
  // before it, and who goes first leaves no block behind whose beginning is gone.
  std::list<int32_t> unused_;
  std::unordered_multimap<uint32_t, int32_t> index_;  // by hash_of()
  uint64_t last_id_ = 0;
};

}  // namespace edgellm
