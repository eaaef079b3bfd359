#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/json_node.h"

namespace edgellm::tok {

namespace {

// Up to here looking at all pairs for the lowest rank beats a priority queue; words of natural text
// are nearly all shorter.
constexpr size_t kShortWord = 48;

// Longer words are seldom met twice.
constexpr size_t kMaxCachedWord = 64;

}  // namespace

Bpe::Scratch::Scratch(size_t text_bytes)
    // A place per 16 bytes of text serves small prompts at small cost. 16384 places hold the
    // distinct words of about a megabyte of English.
    : cache_(std::bit_ceil(std::clamp<size_t>(text_bytes / 16, 16, 16384))) {}

Bpe::Bpe(const Vocabulary& vocabulary, const std::vector<TokenizerFile::Merge>& merges,
         bool ignore_merges, const std::string& where)
    : ignore_merges_(ignore_merges) {
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = vocabulary.id_of(byte_to_alphabet(static_cast<uint8_t>(byte)));
  }

  merges_.resize(std::bit_ceil(2 * merges.size() + 2));
  hash_shift_ = 64 - std::countr_zero(merges_.size());
  std::string joined;
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto id_of = [&](std::string_view content) {
      const int32_t id = vocabulary.id_of(content);
      if (id < 0) {
        throw Error(ExitCode::kModelFile,
                    where + "[" + std::to_string(i) + "]: the vocabulary has no " +
                        in_quotes(content) +
                        "; expected both parts and the merged token in model.vocab");
      }
      return id;
    };
    joined.assign(merges[i].left).append(merges[i].right);
    const uint64_t pair = pair_of(id_of(merges[i].left), id_of(merges[i].right));
    // Of equal pairs the last one counts, as in Hugging Face's tokenizers.
    merges_[find_slot(pair)] = {pair, static_cast<uint32_t>(i), id_of(joined)};
  }

  if (ignore_merges_) {
    whole_words_.reserve(vocabulary.tokens().size());
    for (const Token& token : vocabulary.tokens()) {
      if (token.id >= 0 && token.in_alphabet) whole_words_.insert(token.bytes, token.id);
    }
  }
}

bool Bpe::covers_utf8() const {
  for (size_t byte = 0; byte <= 0xF4; ++byte) {
    const bool never_used = byte == 0xC0 || byte == 0xC1;
    if (byte_ids_[byte] < 0 && !never_used) return false;
  }
  return true;
}

size_t Bpe::find_slot(uint64_t pair) const {
  // Fibonacci hashing: the high bits of the product depend on all bits of both ids.
  const size_t mask = merges_.size() - 1;
  size_t slot = static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> hash_shift_);
  while (merges_[slot].pair != pair && merges_[slot].pair != kNoPair) slot = (slot + 1) & mask;
  return slot;
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  Scratch::CachedWord* place = nullptr;
  if (word.size() <= kMaxCachedWord) {
    place = &scratch.cache_[std::hash<std::string_view>{}(word) & (scratch.cache_.size() - 1)];
    if (place->word == word) {
      const auto first = scratch.cached_ids_.begin() + static_cast<ptrdiff_t>(place->first);
      ids.insert(ids.end(), first, first + static_cast<ptrdiff_t>(place->n_ids));
      return;
    }
  }

  const size_t n_before = ids.size();
  const int32_t whole = ignore_merges_ ? whole_words_.find(word) : StringIndex::kNone;
  if (whole != StringIndex::kNone) {
    ids.push_back(whole);
  } else {
    split_bytes(word, scratch);
    if (word.size() <= kShortWord) {
      merge_short(scratch, ids);
    } else {
      merge_long(scratch, ids);
    }
  }

  if (place != nullptr) {
    *place = {word, scratch.cached_ids_.size(), ids.size() - n_before};
    scratch.cached_ids_.insert(scratch.cached_ids_.end(),
                               ids.begin() + static_cast<ptrdiff_t>(n_before), ids.end());
  }
}

// One symbol per byte, each with what it and the next would become.
void Bpe::split_bytes(std::string_view word, Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols_;
  symbols.resize(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    const auto byte = static_cast<uint8_t>(word[i]);
    const int32_t id = byte_ids_[byte];
    if (id < 0) {
      // Hugging Face's tokenizers drop such a byte without a word; a prompt must not lose text.
      throw Error(ExitCode::kUnsupported, "the tokenizer's vocabulary has no token for the byte " +
                                              std::to_string(byte) + " in " + in_quotes(word) +
                                              "; take such characters out of the text");
    }
    symbols[i] = {id, -1, kNoMerge, static_cast<uint32_t>(i) - 1, static_cast<uint32_t>(i) + 1};
  }
  symbols.back().next = kNoSymbol;
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    const Merge& merge = find(symbols[i].id, symbols[i + 1].id);
    symbols[i].merged_id = merge.id;
    symbols[i].rank = merge.rank;
  }
}

// Keeps the live symbols together in front and moves the rest up after each merge.
void Bpe::merge_short(Scratch& scratch, std::vector<int32_t>& ids) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols_;
  const auto update = [&](size_t i) {
    const Merge& merge = find(symbols[i].id, symbols[i + 1].id);
    symbols[i].merged_id = merge.id;
    symbols[i].rank = merge.rank;
  };
  while (symbols.size() > 1) {
    const auto best =
        std::min_element(symbols.begin(), symbols.end(),
                         [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (best->rank == kNoMerge) break;
    const auto i = static_cast<size_t>(best - symbols.begin());
    best->id = best->merged_id;
    best->rank = kNoMerge;
    symbols.erase(best + 1);
    if (i + 1 < symbols.size()) update(i);
    if (i > 0) update(i - 1);
  }
  for (const Scratch::Symbol& symbol : symbols) ids.push_back(symbol.id);
}

// The same with a linked list and a queue of (rank, position): O(n log n).
void Bpe::merge_long(Scratch& scratch, std::vector<int32_t>& ids) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols_;
  std::vector<uint64_t>& queue = scratch.queue_;
  const auto entry_of = [&](uint32_t i) {
    return (static_cast<uint64_t>(symbols[i].rank) << 32) | i;
  };
  const auto update = [&](uint32_t i) {
    Scratch::Symbol& symbol = symbols[i];
    symbol.rank = kNoMerge;
    if (symbol.next == kNoSymbol) return;
    const Merge& merge = find(symbol.id, symbols[symbol.next].id);
    if (merge.rank == kNoMerge) return;
    symbol.merged_id = merge.id;
    symbol.rank = merge.rank;
    queue.push_back(entry_of(i));
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };

  queue.clear();
  for (uint32_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].rank != kNoMerge) queue.push_back(entry_of(i));
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());

  while (!queue.empty()) {
    const uint64_t entry = queue.front();
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    queue.pop_back();
    const auto i = static_cast<uint32_t>(entry);
    Scratch::Symbol& left = symbols[i];
    // A rank belongs to one pair, so another rank means that the pair is gone.
    if (left.rank != entry >> 32) continue;

    Scratch::Symbol& right = symbols[left.next];
    left.id = left.merged_id;
    left.next = right.next;
    right.id = -1;
    right.rank = kNoMerge;
    if (left.next != kNoSymbol) symbols[left.next].prev = i;
    update(i);
    if (left.prev != kNoSymbol) update(left.prev);
  }
  for (const Scratch::Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
}

}  // namespace edgellm::tok
