// Byte-pair encoding of one word: start with its bytes, and while some neighbours can merge, merge
// the pair of lowest rank, the leftmost of equals.
//
// Immutable after construction; threads share it, each with its own Bpe::Scratch.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/string_index.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/vocabulary.h"

namespace edgellm::tok {

class Bpe {
 public:
  // The words of one text and their ids, and working memory. Words are kept as views: they must
  // live as long as the scratch.
  class Scratch {
   public:
    explicit Scratch(size_t text_bytes);

   private:
    friend class Bpe;
    struct CachedWord {
      std::string_view word;  // empty: a free place
      size_t first = 0;       // in cached_ids_
      size_t n_ids = 0;
    };
    struct Symbol {
      int32_t id;           // -1: merged into the symbol before it
      int32_t merged_id;    // what this and the next become
      uint32_t rank;        // of that merge, kNoMerge if there is none
      uint32_t prev, next;  // kNoSymbol at the ends
    };

    std::vector<CachedWord> cache_;  // one place per hash value: a newer word replaces an older
    std::vector<int32_t> cached_ids_;
    std::vector<Symbol> symbols_;
    std::vector<uint64_t> queue_;
  };

  // All tokens that `vocabulary` has by now are the model's. `where` begins the message of an Error
  // (kModelFile) for a merge of unknown tokens.
  Bpe(const Vocabulary& vocabulary, const std::vector<TokenizerFile::Merge>& merges,
      bool ignore_merges, const std::string& where);

  // Appends the ids of `word`. A byte that the vocabulary lacks is Error, kUnsupported.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  // True if every byte that valid UTF-8 can hold has a token.
  bool covers_utf8() const;

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = kNoMerge;
    int32_t id = -1;
  };
  static constexpr uint64_t kNoPair = UINT64_MAX;
  static constexpr uint32_t kNoMerge = UINT32_MAX;
  static constexpr uint32_t kNoSymbol = UINT32_MAX;

  static uint64_t pair_of(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(left) << 32) | static_cast<uint32_t>(right);
  }
  size_t find_slot(uint64_t pair) const;
  const Merge& find(int32_t left, int32_t right) const {
    return merges_[find_slot(pair_of(left, right))];
  }

  void split_bytes(std::string_view word, Scratch& scratch) const;
  void merge_short(Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge_long(Scratch& scratch, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_{};  // -1: none
  std::vector<Merge> merges_;            // open addressing, at most half full
  int hash_shift_;                       // keeps as many bits of a hash as merges_ has places
  StringIndex whole_words_;              // by bytes; empty unless ignore_merges
  bool ignore_merges_;
};

}  // namespace edgellm::tok
