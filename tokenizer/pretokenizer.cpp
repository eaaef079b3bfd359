#include "tokenizer/pretokenizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/replacement.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

namespace {

constexpr const char* kSupportedPreTokenizers =
    "null, Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, Sequence";

// The pattern that ByteLevel with use_regex stands for (GPT-2's encoder.py).
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

using Match = PreTokenizer::Match;

// The matches, and what is between them, as one gapless list.
void fill_gaps(const std::vector<ByteRange>& found, size_t size, std::vector<Match>& matches) {
  size_t end = 0;
  for (const ByteRange& range : found) {
    if (end != range.begin) matches.push_back({{end, range.begin}, false});
    matches.push_back({range, true});
    end = range.end;
  }
  if (end != size) matches.push_back({{end, size}, false});
}

void match_characters(bool (*test)(char32_t), std::string_view text,
                      std::vector<ByteRange>& found) {
  found.clear();
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    if (test(unit.character)) found.push_back({i, i + unit.n_bytes});
    i += unit.n_bytes;
  }
}

// The word with its spaces replaced and, if `prepend` says so, one in front.
std::string with_metaspaces(const Metaspace& metaspace, std::string_view word, bool prepend) {
  const std::string& replacement = metaspace.replacement;
  std::string out;
  out.reserve(word.size() + word.size() / 2);
  if (prepend && !word.starts_with(' ') && !word.starts_with(replacement)) out = replacement;
  for (const char c : word) {
    if (c == ' ') {
      out += replacement;
    } else {
      out += c;
    }
  }
  return out;
}

// Appends the word, cut before every replacement if Metaspace splits.
void cut_at_spaces(std::string_view word, const Metaspace& metaspace,
                   std::vector<std::string_view>& words) {
  while (metaspace.split) {
    const size_t next = word.find(metaspace.replacement, 1);
    if (next == std::string_view::npos) break;
    words.push_back(word.substr(0, next));
    word.remove_prefix(next);
  }
  words.push_back(word);
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonNode& node) : where_(node.path()) {
  add_steps(node);
  if (!has_byte_level_) return;
  // With nothing behind it the detour through the alphabet ends where it began.
  if (std::holds_alternative<AlphabetStep>(steps_.back())) {
    steps_.pop_back();
  } else {
    ends_in_alphabet_ = true;
  }
}

void PreTokenizer::add_steps(const JsonNode& node) {
  if (node.is_null()) return;
  const std::string& type = node.at("type").string();
  if (type == "Sequence") {
    const JsonNode members = node.at("pretokenizers");
    for (size_t i = 0; i < members.size(); ++i) add_steps(members.at(i));
  } else if (type == "Split") {
    add_split(node);
  } else if (type == "ByteLevel") {
    add_byte_level(node);
  } else if (type == "Digits") {
    const bool individual = node.at("individual_digits").boolean();
    add_character_split(is_numeric, individual ? Behavior::kIsolated : Behavior::kContiguous);
  } else if (type == "Punctuation") {
    const JsonNode behavior = node.find("behavior");
    add_character_split(is_punctuation,
                        behavior.is_null() ? Behavior::kIsolated : behavior_of(behavior));
  } else if (type == "Metaspace") {
    if (has_byte_level_) node.refuse("Metaspace behind ByteLevel", "Metaspace before ByteLevel");
    steps_.push_back(Metaspace(node));
  } else if (type == "WhitespaceSplit") {
    add_character_split(is_white_space, Behavior::kRemoved);
  } else if (type == "Whitespace") {
    add_character_split(is_white_space, Behavior::kRemoved);
    add_character_split(is_word, Behavior::kContiguous);
  } else {
    node.refuse("the pre-tokenizer " + in_quotes(type), kSupportedPreTokenizers);
  }
  check_steps(steps_.size(), node);
}

void PreTokenizer::add_character_split(CharacterTest test, Behavior behavior) {
  steps_.push_back(SplitStep{test, behavior, false});
}

void PreTokenizer::add_split(const JsonNode& node) {
  const JsonNode pattern = node.at("pattern");
  const bool is_regex = !pattern.find("Regex").is_null();
  const JsonNode text = pattern.at(is_regex ? "Regex" : "String");
  steps_.push_back(
      SplitStep{Regex(text.string(), is_regex ? Regex::Syntax::kOniguruma : Regex::Syntax::kLiteral,
                      text.path()),
                behavior_of(node.at("behavior")), node.at("invert").boolean()});
}

void PreTokenizer::add_byte_level(const JsonNode& node) {
  if (has_byte_level_) node.refuse("a second ByteLevel", "one");
  has_byte_level_ = true;
  if (node.at("add_prefix_space").boolean()) steps_.push_back(PrefixSpaceStep{});
  if (node.find("use_regex").boolean_or(true)) {
    steps_.push_back(SplitStep{Regex(kGpt2Pattern, Regex::Syntax::kOniguruma, node.path()),
                               Behavior::kIsolated, false});
  }
  steps_.push_back(AlphabetStep{});
}

PreTokenizer::Behavior PreTokenizer::behavior_of(const JsonNode& node) {
  const std::string& name = node.string();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  node.refuse(in_quotes(name), "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

// Appends the parts of one word to scratch.next.
void PreTokenizer::split_word(const SplitStep& step, std::string_view word, Scratch& scratch) {
  if (const Regex* regex = std::get_if<Regex>(&step.pattern)) {
    regex->find_all(word, scratch.searcher, scratch.found);
  } else {
    match_characters(std::get<CharacterTest>(step.pattern), word, scratch.found);
  }
  std::vector<Match>& matches = scratch.matches;
  matches.clear();
  fill_gaps(scratch.found, word.size(), matches);
  if (step.invert) {
    for (Match& match : matches) match.is_match = !match.is_match;
  }

  // Joins neighbours in place: `joins(before, match)` says whether a match goes to its predecessor.
  const auto join = [](auto first, auto last, auto joins) {
    if (first == last) return first;
    auto kept = first;
    bool before = first->is_match;
    for (auto match = first + 1; match != last; ++match) {
      if (joins(before, match->is_match)) {
        kept->range = {std::min(kept->range.begin, match->range.begin),
                       std::max(kept->range.end, match->range.end)};
      } else {
        ++kept;
        kept->range = match->range;
      }
      before = match->is_match;
    }
    return kept + 1;
  };
  const auto to_neighbour = [](bool before, bool match) { return match && !before; };
  const auto to_equal = [](bool before, bool match) { return match == before; };
  switch (step.behavior) {
    case Behavior::kIsolated:
      break;
    case Behavior::kRemoved:
      std::erase_if(matches, [](const Match& match) { return match.is_match; });
      break;
    case Behavior::kMergedWithPrevious:
      matches.erase(join(matches.begin(), matches.end(), to_neighbour), matches.end());
      break;
    case Behavior::kMergedWithNext:
      std::reverse(matches.begin(), matches.end());
      matches.erase(join(matches.begin(), matches.end(), to_neighbour), matches.end());
      std::reverse(matches.begin(), matches.end());
      break;
    case Behavior::kContiguous:
      matches.erase(join(matches.begin(), matches.end(), to_equal), matches.end());
      break;
  }
  for (const Match& match : matches) {
    if (match.range.begin == match.range.end) continue;
    scratch.next.push_back(word.substr(match.range.begin, match.range.end - match.range.begin));
  }
}

void PreTokenizer::split(std::string_view text, bool at_start, Scratch& scratch,
                         std::vector<std::string_view>& words) const {
  words.clear();
  if (!text.empty()) words.push_back(text);
  constexpr size_t kSlack = 1 << 20;
  const size_t limit = growth_limit(text.size(), kSlack);
  size_t n_rewritten = 0;  // bytes of all steps: as many are kept
  const auto rewrite = [&](std::string word) {
    n_rewritten += word.size();
    check_growth(n_rewritten, limit, where_);
    return std::string_view(scratch.rewritten.emplace_back(std::move(word)));
  };
  for (const Step& step : steps_) {
    if (const SplitStep* split = std::get_if<SplitStep>(&step)) {
      scratch.next.clear();
      for (const std::string_view word : words) split_word(*split, word, scratch);
      // The beginning may have been removed.
      at_start =
          at_start && !scratch.next.empty() && scratch.next.front().data() == words.front().data();
      words.swap(scratch.next);
    } else if (std::holds_alternative<PrefixSpaceStep>(step)) {
      for (std::string_view& word : words) {
        if (word.front() != ' ') word = rewrite(std::string(1, ' ').append(word));
      }
    } else if (const Metaspace* metaspace = std::get_if<Metaspace>(&step)) {
      scratch.next.clear();
      for (size_t i = 0; i < words.size(); ++i) {
        const bool prepend =
            metaspace->prepend == Metaspace::Prepend::kAlways ||
            (metaspace->prepend == Metaspace::Prepend::kFirst && at_start && i == 0);
        cut_at_spaces(rewrite(with_metaspaces(*metaspace, words[i], prepend)), *metaspace,
                      scratch.next);
      }
      words.swap(scratch.next);
    } else {
      for (std::string_view& word : words) word = rewrite(to_alphabet(word));
    }
  }
  if (ends_in_alphabet_) {
    for (std::string_view& word : words) {
      std::string bytes;
      require(from_alphabet(word, bytes), "PreTokenizer: a word left the alphabet");
      word = rewrite(std::move(bytes));
    }
  }
}

}  // namespace edgellm::tok
