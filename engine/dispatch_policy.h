// Which engine gets which request, where several engines run the same model. No threads and no
// clock: dispatcher.h has those, and a test simulates them.
//
// Requests wait here, not at an engine, until an engine has room. So an engine that is quicker than
// another, or gets shorter answers, takes more of them, and none is idle while a request waits.
//
// Engines compute a prompt quicker where their KV cache holds its beginning. A request goes to the
// engine that knows the longest beginning, of those the one with the most free KV blocks. The first
// rule yields where it would leave an engine with much less to do than another. What an engine
// knows is an estimate: the blocks of the prompts that it was given, the least recently given
// forgotten first, as many as its cache has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace edgellm {

// The blocks of KV cache that an engine probably holds, by the hash of a block and all before it.
class KnownPrefixes {
 public:
  explicit KnownPrefixes(size_t most) : most_(most) {}

  // One hash for each whole block of the prompt, of the block's ids and all ids before them.
  static std::vector<uint64_t> hashes_of(std::span<const int32_t> prompt_ids);

  // How many of the first blocks are known.
  int count(std::span<const uint64_t> hashes) const;
  // They are known from now on.
  void add(std::span<const uint64_t> hashes);

 private:
  size_t most_;
  std::list<uint64_t> lru_;  // the least recently added first, a block before those it stands on
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

class DispatchPolicy {
 public:
  // The requests at the front of the queue among which one is chosen for an engine with room.
  static constexpr size_t kWindow = 32;
  // So often a request may be overtaken.
  static constexpr int kMostOvertaken = 64;

  struct Engine {
    int sequences = 0;  // at the same time
    int kv_blocks = 0;
  };
  explicit DispatchPolicy(const std::vector<Engine>& engines);

  struct Request {
    uint64_t id = 0;
    std::vector<uint64_t> prefix;  // KnownPrefixes::hashes_of() what it can share
    int n_blocks = 0;              // that it can need at most
  };
  // It waits from now on, behind all others. `in_front`: it has waited before.
  void add(Request request, bool in_front = false);
  // It waits no longer. False where it does not wait.
  bool remove(uint64_t id);
  // Nothing waits any more. Returns the ids.
  std::vector<uint64_t> remove_all();
  size_t waiting() const { return waiting_.size(); }

  struct Assignment {
    uint64_t id = 0;
    size_t engine = 0;
    int n_blocks = 0;  // that the engine probably allocates for it
  };
  // The next request for which an engine has room; it waits no longer. Empty where there is none.
  std::optional<Assignment> next();

  // A request that was assigned to the engine has ended.
  void ended(size_t engine);
  // Blocks of the engine that no sequence holds, nor a request will hold that was assigned and is
  // not admitted yet.
  void set_free_blocks(size_t engine, int n_blocks);
  // The engine gets no more requests.
  void take_out(size_t engine);

 private:
  struct Waiting {
    Request request;
    int n_overtaken = 0;
  };
  struct State {
    Engine limits;
    KnownPrefixes known;
    int live = 0;  // assigned, and not ended
    int free_blocks = 0;
    bool is_out = false;
  };

  int blocks_at(const Request& request, const State& engine) const;
  bool fits_anywhere(const Request& request) const;
  bool has_room(const Request& request, const State& engine) const;
  std::optional<size_t> best_engine(const Request& request) const;
  int advantage(const Request& request, size_t engine) const;
  size_t best_request(size_t engine) const;

  std::vector<State> engines_;
  std::deque<Waiting> waiting_;
};

}  // namespace edgellm
