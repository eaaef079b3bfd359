// A flat hash map from strings to ids, made once and then only read. Keys are views of text that
// lives elsewhere.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace edgellm::tok {

class StringIndex {
 public:
  static constexpr int32_t kNone = -1;

  // Makes room for `n` keys.
  void reserve(size_t n) {
    entries_.reserve(n);
    if (2 * n > slots_.size()) rehash(std::bit_ceil(2 * n));
  }

  // False, and nothing changes, if the key is there already.
  bool insert(std::string_view key, int32_t id) {
    if (2 * (entries_.size() + 1) > slots_.size()) rehash(2 * slots_.size());
    const uint32_t hash = hash_of(key);
    const size_t slot = find_slot(key, hash);
    if (slots_[slot].entry != kEmpty) return false;
    slots_[slot] = {hash, static_cast<uint32_t>(entries_.size())};
    entries_.push_back({key, id});
    return true;
  }

  int32_t find(std::string_view key) const {
    const uint32_t entry = slots_[find_slot(key, hash_of(key))].entry;
    return entry == kEmpty ? kNone : entries_[entry].id;
  }

 private:
  static constexpr uint32_t kEmpty = UINT32_MAX;
  struct Slot {
    uint32_t hash = 0;
    uint32_t entry = kEmpty;
  };
  struct Entry {
    std::string_view key;
    int32_t id;
  };

  static uint32_t hash_of(std::string_view key) {
    const uint64_t hash = std::hash<std::string_view>{}(key);
    return static_cast<uint32_t>(hash ^ (hash >> 32));
  }

  // Where the key is, or where it would go. The table is never more than half full.
  size_t find_slot(std::string_view key, uint32_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash & mask;
    while (slots_[slot].entry != kEmpty &&
           (slots_[slot].hash != hash || entries_[slots_[slot].entry].key != key)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  void rehash(size_t n_slots) {
    std::vector<Slot> old(n_slots);
    old.swap(slots_);
    for (const Slot& from : old) {
      if (from.entry == kEmpty) continue;
      size_t slot = from.hash & (n_slots - 1);
      while (slots_[slot].entry != kEmpty) slot = (slot + 1) & (n_slots - 1);
      slots_[slot] = from;
    }
  }

  std::vector<Entry> entries_;
  std::vector<Slot> slots_ = std::vector<Slot>(16);
};

}  // namespace edgellm::tok
