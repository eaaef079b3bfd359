#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/decoder.h"
#include "tokenizer/json_node.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

namespace {

// Up to here looking at all pairs for the lowest rank beats a priority queue; words of natural text
// are nearly all shorter.
constexpr size_t kShortWord = 48;

// Longer words are seldom met twice.
constexpr size_t kMaxCachedWord = 64;

// Fibonacci hashing: the high bits of the product depend on all bits of both ids.
uint64_t hash_of(uint64_t pair) { return pair * 0x9E3779B97F4A7C15u; }

// Where `pair` is in a table of pairs, or where it would go.
size_t find_place(const std::vector<uint64_t>& table, uint64_t pair) {
  const size_t mask = table.size() - 1;
  size_t place = hash_of(pair) >> (64 - std::countr_zero(table.size()));
  while (table[place] != pair && table[place] != UINT64_MAX) place = (place + 1) & mask;
  return place;
}

[[noreturn]] void fail_missing(const std::string& what, std::string_view word) {
  throw Error(ExitCode::kUnsupported, "the tokenizer's vocabulary has no token for " + what +
                                          " in " + in_quotes(word) +
                                          "; take such characters out of the text");
}

}  // namespace

Bpe::Scratch::Scratch(size_t text_bytes)
    // A place per 16 bytes of text serves small prompts at small cost. 16384 places hold the
    // distinct words of about a megabyte of English.
    : cache_(std::bit_ceil(std::clamp<size_t>(text_bytes / 16, 16, 16384))) {}

Bpe::Bpe(const Vocabulary& vocabulary, const std::vector<TokenizerFile::Merge>& merges,
         const Options& options, const std::string& where)
    : options_(options) {
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

  if (options_.byte_level) {
    for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
      byte_ids_[byte] = vocabulary.id_of(byte_to_alphabet(static_cast<uint8_t>(byte)));
    }
  } else {
    index_characters(vocabulary, merges);
    index_fallback(vocabulary, merges);
  }

  if (options_.ignore_merges) {
    whole_words_.reserve(vocabulary.tokens().size());
    std::string bytes;
    for (const Token& token : vocabulary.tokens()) {
      if (token.id < 0) continue;
      if (!options_.byte_level) {
        whole_words_.insert(token.content, token.id);
      } else if (from_alphabet(token.content, bytes)) {
        whole_words_.insert(whole_word_bytes_.add(bytes), token.id);
      }
    }
  }
}

void Bpe::index_characters(const Vocabulary& vocabulary,
                           const std::vector<TokenizerFile::Merge>& merges) {
  for (const Token& token : vocabulary.tokens()) {
    if (token.id < 0 || token.content.empty()) continue;
    const Utf8Unit unit = read_utf8(token.content, 0);
    if (unit.n_bytes != token.content.size()) continue;
    if (unit.character >= 0x10000) {
      rare_characters_.insert(token.content, token.id);
      continue;
    }
    if (unit.character >= character_ids_.size()) character_ids_.resize(unit.character + 1, -1);
    character_ids_[unit.character] = token.id;
  }

  // A merge joins the last character of its left part with the first one of its right part.
  joins_.assign(std::bit_ceil(2 * merges.size() + 2), kNoPair);
  for (const TokenizerFile::Merge& merge : merges) {
    if (merge.left.empty() || merge.right.empty()) {
      can_cut_ = false;
      continue;
    }
    const int32_t left =
        character_id(merge.left.substr(previous_character(merge.left, merge.left.size())));
    const int32_t right = character_id(merge.right.substr(0, read_utf8(merge.right, 0).n_bytes));
    if (left < 0 || right < 0) continue;  // no text leads to this merge
    joins_[find_place(joins_, pair_of(left, right))] = pair_of(left, right);
  }
}

void Bpe::index_fallback(const Vocabulary& vocabulary,
                         const std::vector<TokenizerFile::Merge>& merges) {
  byte_ids_.fill(-1);
  if (options_.byte_fallback) {
    for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
      byte_ids_[byte] = vocabulary.id_of(fallback_token(static_cast<uint8_t>(byte)));
    }
  }
  const auto stands_for_missing = [&](std::string_view content) {
    return (options_.byte_fallback && fallback_byte(content) >= 0) ||
           (options_.unk_id >= 0 && vocabulary.id_of(content) == options_.unk_id);
  };
  for (const TokenizerFile::Merge& merge : merges) {
    if (stands_for_missing(merge.left) || stands_for_missing(merge.right)) can_cut_ = false;
  }
}

int32_t Bpe::character_id(std::string_view character) const {
  const char32_t c = character_at(character, 0);
  if (c >= 0x10000) return rare_characters_.find(character);
  return c < character_ids_.size() ? character_ids_[c] : -1;
}

bool Bpe::can_join(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  return joins_[find_place(joins_, pair)] == pair;
}

bool Bpe::covers_utf8() const {
  for (size_t byte = 0; byte <= 0xF4; ++byte) {
    const bool never_used = byte == 0xC0 || byte == 0xC1;
    if (byte_ids_[byte] < 0 && !never_used) return false;
  }
  return true;
}

size_t Bpe::find_slot(uint64_t pair) const {
  const size_t mask = merges_.size() - 1;
  size_t slot = hash_of(pair) >> hash_shift_;
  while (merges_[slot].pair != pair && merges_[slot].pair != kNoPair) slot = (slot + 1) & mask;
  return slot;
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  const int32_t whole = options_.ignore_merges ? whole_words_.find(word) : StringIndex::kNone;
  if (whole != StringIndex::kNone) {
    ids.push_back(whole);
  } else if (options_.byte_level) {
    encode_bytes(word, scratch, ids);
  } else {
    encode_characters(word, scratch, ids);
  }
}

void Bpe::encode_bytes(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  scratch.run_.resize(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    const auto byte = static_cast<uint8_t>(word[i]);
    scratch.run_[i] = byte_ids_[byte];
    // Hugging Face's tokenizers drop such a byte without a word; a prompt must not lose text.
    if (byte_ids_[byte] < 0) fail_missing("the byte " + std::to_string(byte), word);
  }
  encode_run(word, scratch, ids);
}

void Bpe::encode_characters(std::string_view word, Scratch& scratch,
                            std::vector<int32_t>& ids) const {
  std::vector<int32_t>& run = scratch.run_;
  run.clear();
  size_t run_begin = 0;
  const auto end_run = [&](size_t end) {
    if (!run.empty()) encode_run(word.substr(run_begin, end - run_begin), scratch, ids);
    run.clear();
    run_begin = end;
  };
  const auto add_missing = [&](int32_t id, size_t begin) {
    if (can_cut_) {
      end_run(begin);
      ids.push_back(id);
    } else {
      run.push_back(id);
    }
  };

  bool unk_pending = false;
  for (size_t i = 0; i < word.size();) {
    const size_t begin = i;
    i += read_utf8(word, i).n_bytes;
    const std::string_view character = word.substr(begin, i - begin);
    const int32_t id = character_id(character);
    if (id >= 0) {
      if (unk_pending) add_missing(options_.unk_id, begin);
      unk_pending = false;
      if (can_cut_ && !run.empty() && !can_join(run.back(), id)) end_run(begin);
      if (run.empty()) run_begin = begin;
      run.push_back(id);
      continue;
    }
    const auto byte_id = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
    if (std::all_of(character.begin(), character.end(), [&](char c) { return byte_id(c) >= 0; })) {
      // As in Hugging Face's tokenizers, an unknown character before these waits for what follows.
      for (const char c : character) add_missing(byte_id(c), begin);
      continue;
    }
    if (options_.unk_id < 0) fail_missing(in_quotes(character), word);
    if (unk_pending && !options_.fuse_unk) add_missing(options_.unk_id, begin);
    if (can_cut_) end_run(begin);
    unk_pending = true;
  }
  if (unk_pending) add_missing(options_.unk_id, word.size());
  end_run(word.size());
}

void Bpe::encode_run(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (scratch.run_.size() == 1) {
    ids.push_back(scratch.run_[0]);
    return;
  }
  Scratch::CachedWord* place = nullptr;
  if (text.size() <= kMaxCachedWord) {
    place = &scratch.cache_[std::hash<std::string_view>{}(text) & (scratch.cache_.size() - 1)];
    if (place->word == text) {
      const auto first = scratch.cached_ids_.begin() + static_cast<ptrdiff_t>(place->first);
      ids.insert(ids.end(), first, first + static_cast<ptrdiff_t>(place->n_ids));
      return;
    }
  }

  const size_t n_before = ids.size();
  make_symbols(scratch);
  if (scratch.symbols_.size() <= kShortWord) {
    merge_short(scratch, ids);
  } else {
    merge_long(scratch, ids);
  }
  if (place != nullptr) {
    *place = {text, scratch.cached_ids_.size(), ids.size() - n_before};
    scratch.cached_ids_.insert(scratch.cached_ids_.end(),
                               ids.begin() + static_cast<ptrdiff_t>(n_before), ids.end());
  }
}

// Each symbol with what it and the next would become.
void Bpe::make_symbols(Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols_;
  symbols.resize(scratch.run_.size());
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i] = {scratch.run_[i], -1, kNoMerge, static_cast<uint32_t>(i) - 1,
                  static_cast<uint32_t>(i) + 1};
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
