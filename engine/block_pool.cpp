#include "engine/block_pool.h"

#include <algorithm>

#include "base/error.h"

namespace edgellm {

BlockPool::BlockPool(int n_blocks) : blocks_(static_cast<size_t>(n_blocks)) {
  for (int32_t block = n_blocks - 1; block >= 0; --block) free_.push_back(block);
}

BlockPool::Ids BlockPool::ids_of(std::span<const int32_t> prompt_ids, int index) {
  return prompt_ids.subspan(static_cast<size_t>(index) * kKvBlockPositions)
      .first<kKvBlockPositions>();
}

// FNV-1a over words. A collision costs a comparison, never a wrong block; 32 bits let a test meet
// some.
uint32_t BlockPool::hash_of(int32_t before, Ids ids) {
  uint64_t hash = 0xcbf29ce484222325ull;
  const auto add = [&](int32_t word) {
    hash = (hash ^ static_cast<uint32_t>(word)) * 0x100000001b3ull;
  };
  add(before);
  for (const int32_t id : ids) add(id);
  return static_cast<uint32_t>(hash >> 32);
}

int32_t BlockPool::find(int32_t before, Ids ids) const {
  const auto [begin, end] = index_.equal_range(hash_of(before, ids));
  for (auto entry = begin; entry != end; ++entry) {
    const Block& block = blocks_[static_cast<size_t>(entry->second)];
    if (block.before == before && std::ranges::equal(block.ids, ids)) return entry->second;
  }
  return kNone;
}

void BlockPool::forget(int32_t block) {
  const auto [begin, end] = index_.equal_range(hash_of(at(block).before, at(block).ids));
  const auto entry =
      std::find_if(begin, end, [block](const auto& known) { return known.second == block; });
  require(entry != end, "a known block is not in the index");
  index_.erase(entry);
  at(block).known = false;
}

int32_t BlockPool::take_unused() {
  if (!free_.empty()) {
    const int32_t block = free_.back();
    free_.pop_back();
    return block;
  }
  const int32_t block = unused_.front();
  unused_.pop_front();
  forget(block);
  return block;
}

std::optional<BlockPool::Lease> BlockPool::take(std::span<const int32_t> prompt_ids,
                                                int n_positions, bool share) {
  const int n_blocks = blocks_for(n_positions);
  const int prompt = static_cast<int>(prompt_ids.size());
  require(prompt >= 1 && prompt <= n_positions, "a lease holds its prompt");

  Lease lease;
  int n_revived = 0;
  // One id at least is computed: its row gives the first token.
  for (int i = 0; share && i < (prompt - 1) / kKvBlockPositions; ++i) {
    const int32_t block = find(i == 0 ? kNone : lease.blocks.back(), ids_of(prompt_ids, i));
    if (block == kNone) break;
    if (at(block).holders == 0) ++n_revived;
    lease.blocks.push_back(block);
  }
  lease.n_found = lease.n_known = static_cast<int>(lease.blocks.size());
  const int n_new = n_blocks - lease.n_found;
  if (n_new > total() - used() - n_revived) return std::nullopt;

  lease.id = ++last_id_;
  for (const int32_t block : lease.blocks) {
    if (at(block).holders++ == 0) unused_.erase(at(block).unused);
  }
  for (int i = lease.n_found; i < n_blocks; ++i) {
    const int32_t block = take_unused();
    Block& b = at(block);
    b.holders = 1;
    b.computed = false;
    b.writer = 0;
    const bool can_be_known = share && i == lease.n_known && i < prompt / kKvBlockPositions;
    const int32_t before = i == 0 ? kNone : lease.blocks.back();
    // Known already: a prompt that ends with this block, and computes its last id again.
    if (can_be_known && find(before, ids_of(prompt_ids, i)) == kNone) {
      b.known = true;
      b.writer = lease.id;
      b.before = before;
      std::ranges::copy(ids_of(prompt_ids, i), b.ids.begin());
      index_.emplace(hash_of(before, b.ids), block);
      ++lease.n_known;
    }
    lease.blocks.push_back(block);
  }
  return lease;
}

std::optional<int> BlockPool::ready_positions(const Lease& lease) {
  int ready = 0;
  const auto block = [&](int i) -> Block& { return at(lease.blocks[static_cast<size_t>(i)]); };
  while (ready < lease.n_found && block(ready).computed) ++ready;
  if (ready < lease.n_found && block(ready).writer != 0 && block(ready).writer != lease.id) {
    return std::nullopt;
  }
  for (int i = ready; i < lease.n_found; ++i) block(i).writer = lease.id;
  return ready * kKvBlockPositions;
}

void BlockPool::set_computed(const Lease& lease, int n_positions) {
  // From the last one down to the first that was there: a pass adds few.
  for (int i = std::min(lease.n_known, n_positions / kKvBlockPositions) - 1; i >= 0; --i) {
    Block& block = at(lease.blocks[static_cast<size_t>(i)]);
    if (block.computed) break;
    block.computed = true;
    block.writer = 0;
  }
}

void BlockPool::give_back(const Lease& lease) {
  for (size_t i = lease.blocks.size(); i-- > 0;) {
    const int32_t block = lease.blocks[i];
    Block& b = at(block);
    if (b.writer == lease.id) b.writer = 0;
    if (--b.holders > 0) continue;
    if (b.known && b.computed) {
      b.unused = unused_.insert(unused_.end(), block);
    } else {
      if (b.known) forget(block);
      free_.push_back(block);
    }
  }
}

}  // namespace edgellm
