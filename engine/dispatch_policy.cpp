#include "engine/dispatch_policy.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/backend.h"

namespace edgellm {
namespace {

// An engine may have so many sequences more than the one that has the fewest, and still gets a
// request because it knows the beginning: a quarter, and a few where there are few.
int tolerated(int fewest) { return fewest + std::max(4, fewest / 4); }

}  // namespace

// ---- What an engine knows -------------------------------------------------------------------

// The last id of a prompt is always computed, so a block that ends with it helps nobody (see
// block_pool.h); it is a beginning of longer prompts all the same.
std::vector<uint64_t> KnownPrefixes::hashes_of(std::span<const int32_t> prompt_ids) {
  std::vector<uint64_t> hashes;
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a over words, with a shift: its low bits mix badly
  for (size_t i = 0; i < prompt_ids.size(); ++i) {
    hash = (hash ^ static_cast<uint32_t>(prompt_ids[i])) * 0x100000001b3ull;
    hash ^= hash >> 29;
    if ((i + 1) % kKvBlockPositions == 0) hashes.push_back(hash);
  }
  return hashes;
}

int KnownPrefixes::count(std::span<const uint64_t> hashes) const {
  int n = 0;
  for (const uint64_t hash : hashes) {
    if (!places_.contains(hash)) break;
    ++n;
  }
  return n;
}

void KnownPrefixes::add(std::span<const uint64_t> hashes) {
  // The last block first: of a prompt, its end is forgotten before its beginning.
  for (size_t i = hashes.size(); i-- > 0;) {
    const auto known = places_.find(hashes[i]);
    if (known != places_.end()) {
      lru_.splice(lru_.end(), lru_, known->second);
    } else {
      places_.emplace(hashes[i], lru_.insert(lru_.end(), hashes[i]));
    }
  }
  for (; lru_.size() > most_; lru_.pop_front()) places_.erase(lru_.front());
}

// ---- The queue ------------------------------------------------------------------------------

DispatchPolicy::DispatchPolicy(const std::vector<Engine>& engines) {
  for (const Engine& engine : engines) {
    require(engine.sequences >= 1 && engine.kv_blocks >= 1, "an engine has room for a sequence");
    engines_.push_back(
        {engine, KnownPrefixes(static_cast<size_t>(engine.kv_blocks)), 0, engine.kv_blocks, false});
  }
}

void DispatchPolicy::add(Request request, bool in_front) {
  if (in_front) {
    waiting_.push_front({std::move(request), kMostOvertaken});
  } else {
    waiting_.push_back({std::move(request)});
  }
}

bool DispatchPolicy::remove(uint64_t id) {
  const auto place =
      std::ranges::find(waiting_, id, [](const Waiting& waiting) { return waiting.request.id; });
  if (place == waiting_.end()) return false;
  waiting_.erase(place);
  return true;
}

std::vector<uint64_t> DispatchPolicy::remove_all() {
  std::vector<uint64_t> ids;
  for (const Waiting& waiting : waiting_) ids.push_back(waiting.request.id);
  waiting_.clear();
  return ids;
}

// ---- The choice -----------------------------------------------------------------------------

int DispatchPolicy::blocks_at(const Request& request, const State& engine) const {
  return request.n_blocks - engine.known.count(request.prefix);
}

bool DispatchPolicy::fits_anywhere(const Request& request) const {
  return std::ranges::any_of(engines_, [&](const State& engine) {
    return !engine.is_out && request.n_blocks <= engine.limits.kv_blocks;
  });
}

// A request that could never run shall not wait: any engine refuses it.
bool DispatchPolicy::has_room(const Request& request, const State& engine) const {
  if (engine.is_out) return false;
  if (request.n_blocks > engine.limits.kv_blocks) return !fits_anywhere(request);
  if (engine.live >= engine.limits.sequences) return false;
  return engine.live == 0 || blocks_at(request, engine) <= engine.free_blocks;
}

std::optional<size_t> DispatchPolicy::best_engine(const Request& request) const {
  std::optional<int> fewest;
  for (const State& engine : engines_) {
    if (!engine.is_out) fewest = std::min(fewest.value_or(engine.live), engine.live);
  }
  std::optional<size_t> best;
  std::pair<int, int> best_rank;
  for (size_t i = 0; i < engines_.size(); ++i) {
    const State& engine = engines_[i];
    if (!has_room(request, engine)) continue;
    const bool may_prefer = engine.live <= tolerated(*fewest);
    const std::pair rank(may_prefer ? engine.known.count(request.prefix) : -1, engine.free_blocks);
    if (best && rank <= best_rank) continue;
    best = i;
    best_rank = rank;
  }
  return best;
}

// How many more blocks the engine knows than any other that works.
int DispatchPolicy::advantage(const Request& request, size_t engine) const {
  int elsewhere = 0;
  for (size_t i = 0; i < engines_.size(); ++i) {
    if (i == engine || engines_[i].is_out) continue;
    elsewhere = std::max(elsewhere, engines_[i].known.count(request.prefix));
  }
  return engines_[engine].known.count(request.prefix) - elsewhere;
}

// The request that gains most by this engine; the oldest of several.
size_t DispatchPolicy::best_request(size_t engine) const {
  if (engines_.size() == 1 || waiting_.front().n_overtaken >= kMostOvertaken) return 0;
  size_t best = 0;
  int most = advantage(waiting_.front().request, engine);
  for (size_t i = 1; i < std::min(kWindow, waiting_.size()); ++i) {
    const Request& request = waiting_[i].request;
    if (!has_room(request, engines_[engine])) continue;
    const int gain = advantage(request, engine);
    if (gain <= most) continue;
    best = i;
    most = gain;
  }
  return best;
}

std::optional<DispatchPolicy::Assignment> DispatchPolicy::next() {
  if (waiting_.empty()) return std::nullopt;
  const std::optional<size_t> engine = best_engine(waiting_.front().request);
  if (!engine) return std::nullopt;
  const size_t chosen = best_request(*engine);
  if (chosen > 0) ++waiting_.front().n_overtaken;
  const Request request = std::move(waiting_[chosen].request);
  waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(chosen));
  State& state = engines_[*engine];
  const Assignment assignment{request.id, *engine, blocks_at(request, state)};
  ++state.live;
  state.free_blocks -= assignment.n_blocks;
  state.known.add(request.prefix);
  return assignment;
}

void DispatchPolicy::ended(size_t engine) {
  require(engines_[engine].live > 0, "an engine has ended more requests than it got");
  --engines_[engine].live;
}

void DispatchPolicy::set_free_blocks(size_t engine, int n_blocks) {
  engines_[engine].free_blocks = n_blocks;
}

void DispatchPolicy::take_out(size_t engine) { engines_[engine].is_out = true; }

}  // namespace edgellm
