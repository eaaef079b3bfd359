// Which lease holds which block of a paged KV cache, and which prompts share blocks.
#include "engine/block_pool.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "tests/support/random.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

constexpr int kSize = kKvBlockPositions;

std::vector<int32_t> ids_from(int first, int n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

BlockPool::Lease must_allocate(BlockPool& pool, const std::vector<int32_t>& prompt, int more = 1) {
  auto lease = pool.allocate(prompt, static_cast<int>(prompt.size()) + more);
  REQUIRE(lease);
  return *lease;
}

// As a sequence that computes its whole prompt.
BlockPool::Lease compute(BlockPool& pool, const std::vector<int32_t>& prompt, int more = 1) {
  BlockPool::Lease lease = must_allocate(pool, prompt, more);
  REQUIRE(pool.ready_positions(lease));
  pool.set_computed(lease, static_cast<int>(prompt.size()));
  return lease;
}

TEST_CASE("a lease has blocks for its positions, and a pool gives no more than it has") {
  for (const int n : {1, 63, 64, 65, 127, 128, 129}) {
    BlockPool pool(3);
    const auto lease = pool.allocate(ids_from(0, 1), n);
    REQUIRE(lease);
    CHECK(lease->blocks.size() == static_cast<size_t>((n + 63) / 64));
    CHECK(pool.used() == static_cast<int>(lease->blocks.size()));
    pool.free(*lease);
    CHECK(pool.used() == 0);
    CHECK(pool.cached() == 0);
  }
  BlockPool pool(3);
  CHECK_FALSE(pool.allocate(ids_from(0, 1), 3 * kSize + 1));
  CHECK(pool.used() == 0);
  const auto first = pool.allocate(ids_from(0, 1), 2 * kSize);
  CHECK_FALSE(pool.allocate(ids_from(0, 1), kSize + 1));
  const auto second = pool.allocate(ids_from(0, 1), kSize);
  REQUIRE((first && second));
  CHECK(std::set<int32_t>{first->blocks[0], first->blocks[1], second->blocks[0]}.size() == 3);
}

TEST_CASE("prompts share the whole blocks of their common beginning, but never the last id") {
  BlockPool pool(20);
  const std::vector<int32_t> start = ids_from(0, 2 * kSize);
  const auto first = compute(pool, joined(start, ids_from(500, 10)));
  // Another end, another second block, another first block, a part, the same without an end.
  const auto other_end = must_allocate(pool, joined(start, ids_from(900, 70)));
  CHECK(other_end.n_shared == 2);
  CHECK(std::equal(first.blocks.begin(), first.blocks.begin() + 2, other_end.blocks.begin()));
  CHECK(other_end.blocks[2] != first.blocks[2]);
  CHECK(pool.ready_positions(other_end) == 2 * kSize);
  CHECK(must_allocate(pool, joined(ids_from(0, kSize), ids_from(900, 70))).n_shared == 1);
  CHECK(must_allocate(pool, joined(ids_from(1, kSize), ids_from(64, 70))).n_shared == 0);
  CHECK(must_allocate(pool, ids_from(0, kSize)).n_shared == 0);
  CHECK(must_allocate(pool, ids_from(0, kSize + 1)).n_shared == 1);
  CHECK(must_allocate(pool, start).n_shared == 1);
}

TEST_CASE("the second block of one prompt is not found as the first of another") {
  BlockPool pool(8);
  const std::vector<int32_t> block = ids_from(7, kSize);
  compute(pool, joined(block, joined(block, {1})));
  CHECK(must_allocate(pool, joined(block, joined(block, joined(block, {1})))).n_shared == 2);
}

TEST_CASE("blocks whose hashes are equal are told apart by their ids") {
  // About n * n / 2^33 = 5 pairs of equal hashes.
  constexpr int kPrompts = 200'000;
  BlockPool pool(kPrompts + 1);
  Random random(9);
  std::vector<int32_t> prompt(kSize + 1);
  int found = 0;
  for (int i = 0; i < kPrompts; ++i) {
    for (int32_t& id : prompt) id = random.below(30000);
    const auto lease = pool.allocate(prompt, kSize + 1);
    REQUIRE(lease);
    found += lease->n_shared;
    pool.set_computed(*lease, kSize + 1);
    pool.free(*lease);
  }
  CHECK(found == 0);
  CHECK(pool.cached() == kPrompts);
}

TEST_CASE("who comes before a shared block is computed waits; who is left alone computes it") {
  BlockPool pool(20);
  const std::vector<int32_t> prompt = ids_from(0, 3 * kSize + 5);
  const auto first = must_allocate(pool, prompt);
  const auto second = must_allocate(pool, prompt);
  const auto third = must_allocate(pool, prompt);
  CHECK(second.n_shared == 3);
  CHECK(pool.ready_positions(first) == 0);
  CHECK_FALSE(pool.ready_positions(second));
  pool.set_computed(first, kSize + 63);
  CHECK_FALSE(pool.ready_positions(second));
  pool.free(first);
  // One of them computes what is missing, the other one waits for it.
  CHECK(pool.ready_positions(second) == kSize);
  CHECK_FALSE(pool.ready_positions(third));
  CHECK(pool.ready_positions(second) == kSize);
  pool.set_computed(second, 3 * kSize + 5);
  CHECK(pool.ready_positions(third) == 3 * kSize);
  pool.free(second);
  pool.free(third);
  CHECK(pool.used() == 0);
  CHECK(pool.cached() == 3);

  // Not computed and held by no lease: no longer in the index.
  const auto other = must_allocate(pool, ids_from(1000, 2 * kSize));
  pool.free(other);
  CHECK(pool.cached() == 3);
  CHECK(must_allocate(pool, ids_from(1000, 2 * kSize)).n_shared == 0);
}

TEST_CASE(
    "blocks that no lease holds are cached until their memory is needed, the oldest evicted "
    "first") {
  BlockPool pool(6);
  const std::vector<int32_t> a = ids_from(0, 2 * kSize);
  const std::vector<int32_t> b = ids_from(1000, 2 * kSize);
  pool.free(compute(pool, joined(a, {1})));
  pool.free(compute(pool, joined(b, {1})));
  CHECK(pool.cached() == 4);
  pool.free(compute(pool, joined(a, {2})));  // used again: b is the oldest now
  CHECK(pool.cached() == 4);
  const auto three = pool.allocate(ids_from(5000, 1), 3 * kSize);  // two are free, one is evicted
  REQUIRE(three);
  CHECK(pool.cached() == 3);
  {
    const auto found_b = pool.allocate(joined(b, {3}), 2 * kSize + 1);
    REQUIRE(found_b);
    CHECK(found_b->n_shared == 1);  // its last block was evicted first
    // Two more were allocated: one of them b's own, for which only a's last block was left.
    CHECK(pool.used() == 6);
    pool.free(*found_b);
  }
  // A cached block that is shared does not also count as one to evict.
  pool.free(*three);
  BlockPool small(3);
  small.free(compute(small, joined(a, {1})));
  CHECK(small.cached() == 2);
  CHECK_FALSE(small.allocate(joined(a, {1}), 4 * kSize));
  CHECK(small.cached() == 2);
  const auto all = small.allocate(joined(a, {1}), 3 * kSize);
  REQUIRE(all);
  CHECK(all->n_shared == 2);
}

std::vector<std::string> logged;

TEST_CASE("an eviction is logged with the number of its blocks, and what needs none is not") {
  struct Log {
    Log() {
      logged.clear();
      set_log_sink([](LogLevel, std::string_view message) { logged.emplace_back(message); });
      set_log_level(LogLevel::kTrace);
    }
    ~Log() {
      set_log_sink(nullptr);
      set_log_level(LogLevel::kInfo);
    }
  };
  const Log log;
  BlockPool pool(5);
  pool.free(compute(pool, joined(ids_from(0, 2 * kSize), {1})));
  const auto two = pool.allocate(ids_from(5000, 1), 2 * kSize);
  CHECK(logged.empty());
  const auto other_two = pool.allocate(ids_from(6000, 1), 2 * kSize);
  REQUIRE((two && other_two));
  REQUIRE(logged.size() == 1);
  CHECK(logged[0] == "KV blocks: evicting 1; 2 of 5 are used, 2 cached");
  CHECK(pool.cached() == 1);
}

// A model of what the pool must do, over random requests: a block has the contents that its leases
// expect, and no block that a lease holds is allocated again.
TEST_CASE("a pool never loses a block, and what a lease finds was computed from the same ids") {
  Random random(11);
  constexpr int kBlocks = 24;
  BlockPool pool(kBlocks);
  struct Held {
    BlockPool::Lease lease;
    std::vector<int32_t> prompt;
    bool computed;
  };
  std::vector<Held> held;
  std::map<int32_t, std::vector<int32_t>> contents;  // of a block: all ids up to its end
  int found = 0;
  for (int i = 0; i < 20000; ++i) {
    if (!held.empty() && random.below(2) == 0) {
      const size_t which = static_cast<size_t>(random.below(static_cast<int>(held.size())));
      pool.free(held[which].lease);
      held.erase(held.begin() + static_cast<ptrdiff_t>(which));
    } else {
      // Few different blocks, so that beginnings meet.
      std::vector<int32_t> prompt;
      const int whole = random.below(5);
      for (int b = 0; b < whole; ++b) prompt = joined(prompt, ids_from(random.below(2), kSize));
      prompt = joined(prompt, ids_from(77, random.below(kSize - 1) + (whole == 0 ? 1 : 0)));
      auto lease = pool.allocate(prompt, static_cast<int>(prompt.size()) + random.below(100));
      if (lease) held.push_back({*lease, prompt, false});
    }
    for (Held& h : held) {
      if (h.computed || random.below(3) != 0) continue;
      const std::optional<int> ready = pool.ready_positions(h.lease);
      if (!ready) continue;
      found += *ready / kSize;
      for (int b = 0; b < *ready / kSize; ++b) {
        const std::vector<int32_t> until(h.prompt.begin(), h.prompt.begin() + (b + 1) * kSize);
        REQUIRE(contents[h.lease.blocks[static_cast<size_t>(b)]] == until);
      }
      for (int b = *ready / kSize; b < static_cast<int>(h.lease.blocks.size()); ++b) {
        const size_t end = std::min(h.prompt.size(), static_cast<size_t>((b + 1) * kSize));
        contents[h.lease.blocks[static_cast<size_t>(b)]] = {
            h.prompt.begin(), h.prompt.begin() + static_cast<ptrdiff_t>(end)};
      }
      pool.set_computed(h.lease, static_cast<int>(h.prompt.size()));
      h.computed = true;
    }
    std::set<int32_t> used;
    std::map<int32_t, int> ref_counts;
    for (const Held& h : held) {
      for (const int32_t block : h.lease.blocks) {
        used.insert(block);
        ++ref_counts[block];
      }
      for (size_t b = static_cast<size_t>(h.lease.n_indexed); b < h.lease.blocks.size(); ++b) {
        REQUIRE(std::count(h.lease.blocks.begin(), h.lease.blocks.end(), h.lease.blocks[b]) == 1);
      }
    }
    for (const Held& h : held) {
      for (size_t b = static_cast<size_t>(h.lease.n_indexed); b < h.lease.blocks.size(); ++b) {
        REQUIRE(ref_counts[h.lease.blocks[b]] == 1);
      }
    }
    REQUIRE(pool.used() == static_cast<int>(used.size()));
    REQUIRE(pool.used() + pool.cached() <= kBlocks);
  }
  CHECK(found > 1000);
  for (const Held& h : held) pool.free(h.lease);
  CHECK(pool.used() == 0);
  CHECK(pool.allocate(ids_from(500, 1), kBlocks * kSize));
}

}  // namespace
}  // namespace edgellm
