// Cuts text into the words that BPE works on, in the steps that a tokenizer.json lists: Split,
// ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit and sequences of them.
//
// Hugging Face's ByteLevel rewrites the text in GPT-2's alphabet. Here words stay bytes, which is
// the same by another name; only where steps follow a ByteLevel does the text take the detour,
// since they see (and match) the alphabet.
//
// Immutable after construction; threads share it, each with its own Scratch.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_node.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/regex.h"

namespace edgellm::tok {

class PreTokenizer {
 public:
  struct Match {
    ByteRange range;
    bool is_match;  // of the pattern; otherwise what is between matches
  };
  struct Scratch {
    Regex::Searcher searcher;
    std::vector<ByteRange> found;
    std::vector<Match> matches;
    std::vector<std::string_view> next;
    std::deque<std::string> rewritten;  // keeps the text of words that are not in the input
  };

  // Null leaves the text whole. Throws Error: kModelFile for what is broken, kUnsupported for what
  // is unknown, or has too many steps.
  explicit PreTokenizer(const JsonNode& node);

  // There is a ByteLevel: words are bytes and the vocabulary is written in GPT-2's alphabet.
  // Otherwise words are text.
  bool is_byte_level() const { return has_byte_level_; }

  // Replaces `words`: views of `text` or of scratch.rewritten, none empty. `text` is valid UTF-8.
  // `at_start`: it is the beginning of all that is encoded, not what comes behind an added token.
  // Throws Error (kUnsupported) for a text that grows beyond growth_limit().
  void split(std::string_view text, bool at_start, Scratch& scratch,
             std::vector<std::string_view>& words) const;

 private:
  // What becomes of the matches of a pattern.
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  using CharacterTest = bool (*)(char32_t);

  struct SplitStep {
    std::variant<Regex, CharacterTest> pattern;
    Behavior behavior;
    bool invert;
  };
  struct PrefixSpaceStep {};  // a space before every word that has none
  struct AlphabetStep {};     // from here on, words are written in GPT-2's alphabet
  using Step = std::variant<SplitStep, PrefixSpaceStep, AlphabetStep, Metaspace>;

  void add_steps(const JsonNode& node);
  void add_split(const JsonNode& node);
  void add_byte_level(const JsonNode& node);
  void add_character_split(CharacterTest test, Behavior behavior);
  static Behavior behavior_of(const JsonNode& node);

  static void split_word(const SplitStep& step, std::string_view word, Scratch& scratch);

  std::string where_;  // in the file
  std::vector<Step> steps_;
  bool has_byte_level_ = false;
  bool ends_in_alphabet_ = false;  // words must be turned back to bytes
};

}  // namespace edgellm::tok
