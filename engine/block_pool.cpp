#include "engine/block_pool.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace edgellm {

BlockPool::BlockPool(int n_blocks)
    : blocks_(static_cast<size_t>(n_blocks)),
      index_(std::bit_ceil(static_cast<size_t>(n_blocks)), kNone) {
  for (int32_t block = n_blocks - 1; block >= 0; --block) {
    free_.push_back(block);
    at(block).place = not_in_lru_.insert(not_in_lru_.end(), block);
  }
}

// ---- The index ------------------------------------------------------------------------------

BlockPool::Ids BlockPool::ids_of(std::span<const int32_t> prompt_ids, int index) {
  return prompt_ids.subspan(static_cast<size_t>(index) * kKvBlockPositions)
      .first<kKvBlockPositions>();
}

// FNV-1a over words. A collision costs a comparison, never a wrong block. The hash has 32 bits so
// that a test can meet collisions.
uint32_t BlockPool::hash_of(int32_t parent, Ids ids) {
  uint64_t hash = 0xcbf29ce484222325ull;
  const auto add = [&](int32_t word) {
    hash = (hash ^ static_cast<uint32_t>(word)) * 0x100000001b3ull;
  };
  add(parent);
  for (const int32_t id : ids) add(id);
  return static_cast<uint32_t>(hash >> 32);
}

// `hash` is hash_of() the others.
int32_t BlockPool::find(int32_t parent, Ids ids, uint32_t hash) const {
  int32_t found = index_[bucket_number(hash)];
  for (; found != kNone; found = at(found).next_alike) {
    const Block& block = at(found);
    if (block.hash == hash && block.parent == parent && std::ranges::equal(block.ids, ids)) break;
  }
  return found;
}

// The blocks that hold the beginning of a prompt, without its last id: a sequence computes one id
// at least, whose row gives the first token.
std::vector<int32_t> BlockPool::find_prefix(std::span<const int32_t> prompt_ids) const {
  const int whole = (static_cast<int>(prompt_ids.size()) - 1) / kKvBlockPositions;
  std::vector<int32_t> blocks;
  for (int i = 0; i < whole; ++i) {
    const int32_t parent = i == 0 ? kNone : blocks.back();
    const Ids ids = ids_of(prompt_ids, i);
    const int32_t block = find(parent, ids, hash_of(parent, ids));
    if (block == kNone) break;
    blocks.push_back(block);
  }
  return blocks;
}

// `hash` is hash_of() the parent and the ids.
void BlockPool::add_to_index(int32_t block, int32_t parent, Ids ids, uint32_t hash) {
  Block& b = at(block);
  b.indexed = true;
  b.parent = parent;
  b.hash = hash;
  std::ranges::copy(ids, b.ids.begin());
  b.next_alike = std::exchange(index_[bucket_number(hash)], block);
}

void BlockPool::remove_from_index(int32_t block) {
  int32_t* link = &index_[bucket_number(at(block).hash)];
  while (*link != block) {
    require(*link != kNone, "an indexed block is not in the index");
    link = &at(*link).next_alike;
  }
  *link = at(block).next_alike;
  at(block).indexed = false;
}

// ---- Blocks of a sequence -------------------------------------------------------------------

std::optional<BlockPool::Lease> BlockPool::allocate(std::span<const int32_t> prompt_ids,
                                                    int n_positions) {
  const int n_blocks = blocks_for(n_positions);
  const int prompt = static_cast<int>(prompt_ids.size());
  require(prompt <= n_positions && n_positions >= 1, "a lease holds its prompt");

  Lease lease;
  lease.blocks = find_prefix(prompt_ids);
  lease.n_shared = lease.n_indexed = static_cast<int>(lease.blocks.size());
  // Shared blocks that no lease holds are no longer there to be evicted.
  const auto n_reused = static_cast<int>(std::ranges::count_if(
      lease.blocks, [this](int32_t block) { return at(block).ref_count == 0; }));
  const int n_new = n_blocks - lease.n_shared;
  if (n_new > total() - used() - n_reused) return std::nullopt;

  const int n_evicted = n_new - static_cast<int>(free_.size());
  if (n_evicted > 0 && log_enabled(LogLevel::kTrace)) {
    log(LogLevel::kTrace, "KV blocks: evicting " + std::to_string(n_evicted) + "; " +
                              std::to_string(used()) + " of " + std::to_string(total()) +
                              " are used, " + std::to_string(cached()) + " cached");
  }

  lease.id = ++last_id_;
  lease.blocks.reserve(static_cast<size_t>(n_blocks));
  for (const int32_t block : lease.blocks) {
    Block& b = at(block);
    if (b.ref_count++ == 0) not_in_lru_.splice(not_in_lru_.end(), lru_, b.place);
  }
  for (int i = lease.n_shared; i < n_blocks; ++i) {
    const int32_t block = allocate_block();
    Block& b = at(block);
    b.ref_count = 1;
    b.computed = false;
    b.writer = 0;
    // Later leases find a block by its parents, so the indexed blocks of a lease have no hole.
    if (i == lease.n_indexed && i < prompt / kKvBlockPositions) {
      const int32_t parent = i == 0 ? kNone : lease.blocks.back();
      const Ids ids = ids_of(prompt_ids, i);
      const uint32_t hash = hash_of(parent, ids);
      // The index has such a block already where the prompt ends with it: the last id of the prompt
      // is computed again.
      if (find(parent, ids, hash) == kNone) {
        add_to_index(block, parent, ids, hash);
        b.writer = lease.id;
        ++lease.n_indexed;
      }
    }
    lease.blocks.push_back(block);
  }
  return lease;
}

int32_t BlockPool::allocate_block() {
  if (free_.empty()) return evict();
  const int32_t block = free_.back();
  free_.pop_back();
  return block;
}

int32_t BlockPool::evict() {
  const int32_t block = lru_.front();
  not_in_lru_.splice(not_in_lru_.end(), lru_, at(block).place);
  remove_from_index(block);
  return block;
}

std::optional<int> BlockPool::ready_positions(const Lease& lease) {
  int ready = 0;
  const auto block = [&](int i) -> Block& { return at(lease.blocks[static_cast<size_t>(i)]); };
  while (ready < lease.n_shared && block(ready).computed) ++ready;
  if (ready < lease.n_shared && block(ready).writer != 0 && block(ready).writer != lease.id) {
    return std::nullopt;
  }
  for (int i = ready; i < lease.n_shared; ++i) block(i).writer = lease.id;
  return ready * kKvBlockPositions;
}

void BlockPool::set_computed(const Lease& lease, int n_positions) {
  // From the last block down to the first that was computed before: a pass adds few.
  for (int i = std::min(lease.n_indexed, n_positions / kKvBlockPositions) - 1; i >= 0; --i) {
    Block& block = at(lease.blocks[static_cast<size_t>(i)]);
    if (block.computed) break;
    block.computed = true;
    block.writer = 0;
  }
}

void BlockPool::free(const Lease& lease) {
  for (size_t i = lease.blocks.size(); i-- > 0;) {
    const int32_t block = lease.blocks[i];
    Block& b = at(block);
    if (b.writer == lease.id) b.writer = 0;
    if (--b.ref_count > 0) continue;
    if (b.indexed && b.computed) {
      lru_.splice(lru_.end(), not_in_lru_, b.place);
    } else {
      if (b.indexed) remove_from_index(block);
      free_.push_back(block);
    }
  }
}

}  // namespace edgellm
