// Cuts text into the words that BPE works on, in the steps that a tokenizer.json lists: Split,
// ByteLevel, Digits, Punctuation and sequences of them.
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

  // Throws Error: kModelFile for what is broken, kUnsupported for what is unknown or has no
  // ByteLevel, which is how a byte-level vocabulary tells itself from others.
  explicit PreTokenizer(const JsonNode& node);

  // Replaces `words`: views of `text` or of scratch.rewritten, none empty. `text` is valid UTF-8.
  void split(std::string_view text, Scratch& scratch, std::vector<std::string_view>& words) const;

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
  using Step = std::variant<SplitStep, PrefixSpaceStep, AlphabetStep>;

  void add_steps(const JsonNode& node);
  void add_split(const JsonNode& node);
  void add_byte_level(const JsonNode& node);
  static Behavior behavior_of(const JsonNode& node);

  static void split_word(const SplitStep& step, std::string_view word, Scratch& scratch);

  std::vector<Step> steps_;
  bool has_byte_level_ = false;
  bool ends_in_alphabet_ = false;  // words must be turned back to bytes
};

}  // namespace edgellm::tok
