// Byte-pair encoding of one word: start with its bytes (a byte-level vocabulary) or its characters
// (others), and while some neighbours can merge, merge the pair of lowest rank, the leftmost of
// equals. A character that the vocabulary lacks becomes the tokens of its bytes ("<0xE4>", byte
// fallback), or else the token for what is unknown.
//
// Without a pre-tokenizer (LLaMA-2) a whole text is one word. It is cut where no merge can ever
// join two characters, which changes no id: the merges on both sides do not see each other.
//
// Immutable after construction; threads share it, each with its own Bpe::Scratch.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/string_arena.h"
#include "tokenizer/string_index.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/vocabulary.h"

namespace edgellm::tok {

class Bpe {
 public:
  struct Options {
    bool byte_level = true;      // words are bytes; tokens are written in GPT-2's alphabet
    bool ignore_merges = false;  // a word that is a token becomes that token
    bool byte_fallback = false;  // not for a byte-level vocabulary
    bool fuse_unk = false;       // neighbours that are unknown are one token
    int32_t unk_id = -1;         // -1: what is unknown is an Error
  };

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
    std::vector<int32_t> run_;  // where merging starts
    std::vector<Symbol> symbols_;
    std::vector<uint64_t> queue_;
  };

  // All tokens that `vocabulary` has by now are the model's. `where` begins the message of an Error
  // (kModelFile) for a merge of unknown tokens.
  Bpe(const Vocabulary& vocabulary, const std::vector<TokenizerFile::Merge>& merges,
      const Options& options, const std::string& where);

  // Appends the ids of `word`. What the vocabulary lacks, without a fallback and a token for the
  // unknown, is Error, kUnsupported.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  // True if every byte that valid UTF-8 can hold has a token of a byte-level vocabulary.
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

  void index_characters(const Vocabulary& vocabulary,
                        const std::vector<TokenizerFile::Merge>& merges);
  void index_fallback(const Vocabulary& vocabulary,
                      const std::vector<TokenizerFile::Merge>& merges);
  int32_t character_id(std::string_view character) const;
  bool can_join(int32_t left, int32_t right) const;

  void encode_bytes(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  void encode_characters(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  // Appends the ids of a text whose symbols are in scratch.run_.
  void encode_run(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;
  void make_symbols(Scratch& scratch) const;
  void merge_short(Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge_long(Scratch& scratch, std::vector<int32_t>& ids) const;

  Options options_;
  std::array<int32_t, 256> byte_ids_{};  // of letters of the alphabet, or "<0xE4>"; -1: none
  std::vector<Merge> merges_;            // open addressing, at most half full
  int hash_shift_;                       // keeps as many bits of a hash as merges_ has places
  StringIndex whole_words_;              // empty unless ignore_merges
  StringArena whole_word_bytes_;         // of a byte-level vocabulary

  // For characters:
  std::vector<int32_t> character_ids_;  // by character, below U+10000; -1: none
  StringIndex rare_characters_;         // from U+10000 on
  std::vector<uint64_t> joins_;         // pairs that some merge joins; open addressing
  bool can_cut_ = true;                 // no merge takes a fallback or the unknown token
};

}  // namespace edgellm::tok
