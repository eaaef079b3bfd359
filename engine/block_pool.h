// Allocates the blocks of a paged KV cache, and finds those that hold the beginning of a prompt.
//
// Prompts that begin with the same ids share blocks. A block that lies wholly within a prompt is
// indexed by its ids and its parent, the block before it in the prompt. Ids are compared; hashes
// only find candidates.
//
// A shared block is written once, by one sequence: the lease that is its `writer`. The other leases
// wait until a pass has `computed` it, and nobody writes it again. A computed block stays in the
// pool when its ref_count falls to 0, until an allocation needs its memory: the least recently used
// block is evicted first.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "engine/backend.h"

namespace edgellm {

class BlockPool {
 public:
  // The blocks of one sequence, from allocate() to free().
  struct Lease {
    std::vector<int32_t> blocks;  // of positions 0 .., kKvBlockPositions each
    int n_shared = 0;             // the first ones, which earlier leases have allocated
    int n_indexed = 0;            // the first ones, which later leases can share; >= n_shared
    uint64_t id = 0;
  };

  explicit BlockPool(int n_blocks);

  static int blocks_for(int64_t n_positions) {
    return static_cast<int>((n_positions + kKvBlockPositions - 1) / kKvBlockPositions);
  }

  // Blocks for `n_positions`, which are at least the prompt's. The first blocks are shared where
  // the pool has them; the prompt's last id is never in a shared block. Without prompt ids no block
  // is shared, now or later. Empty where the pool has too few free and cached blocks.
  std::optional<Lease> allocate(std::span<const int32_t> prompt_ids, int n_positions);

  // How many of the prompt's first ids need no computing, because the shared blocks hold them.
  // Empty while another lease is the writer of a shared block that is not computed. Where that
  // writer was freed, this lease becomes the writer of what is missing.
  std::optional<int> ready_positions(const Lease& lease);

  // The first `n_positions` of the lease are written.
  void set_computed(const Lease& lease, int n_positions);

  void free(const Lease& lease);

  int total() const { return static_cast<int>(blocks_.size()); }
  // Blocks that leases hold.
  int used() const { return total() - static_cast<int>(free_.size() + lru_.size()); }
  // Blocks that no lease holds, kept for later prompts.
  int cached() const { return static_cast<int>(lru_.size()); }

 private:
  static constexpr int32_t kNone = -1;
  using Ids = std::span<const int32_t, kKvBlockPositions>;

  struct Block {
    int ref_count = 0;     // leases that hold it
    bool indexed = false;  // is in index_; the fields below mean something only then
    bool computed = false;
    uint64_t writer = 0;  // the lease that computes it; 0: none
    int32_t parent = kNone;
    uint32_t hash = 0;                   // hash_of()
    int32_t next_alike = kNone;          // in its bucket of index_
    std::list<int32_t>::iterator place;  // in lru_ or not_in_lru_, always
    std::array<int32_t, kKvBlockPositions> ids{};
  };

  Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
  static Ids ids_of(std::span<const int32_t> prompt_ids, int index);
  static uint32_t hash_of(int32_t parent, Ids ids);
  int32_t find(int32_t parent, Ids ids, uint32_t hash) const;
  size_t bucket_number(uint32_t hash) const { return hash & (index_.size() - 1); }
  std::vector<int32_t> find_prefix(std::span<const int32_t> prompt_ids) const;
  void add_to_index(int32_t block, int32_t parent, Ids ids, uint32_t hash);
  void remove_from_index(int32_t block);
  int32_t allocate_block();
  int32_t evict();

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // last in, first out: the memory of few blocks is touched
  // Computed blocks with a ref_count of 0, the least recently used first. Leaves are freed before
  // their parents, so evicting from the front never orphans a suffix.
  std::list<int32_t> lru_;
  // All other blocks, in no order: a block keeps its list node for life, so moving it costs no
  // allocation. A GPU may be idle while blocks are allocated and freed.
  std::list<int32_t> not_in_lru_;
  // Buckets of blocks by hash_of(): the first block of each, kNone where it has none. A power of
  // two of them.
  std::vector<int32_t> index_;
  uint64_t last_id_ = 0;
};

}  // namespace edgellm
