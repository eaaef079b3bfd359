// Where text is cut into words. What should come out was read off Hugging Face's documentation of
// SplitDelimiterBehavior and its tokenizers 0.23.
#include "tokenizer/pretokenizer.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/tokenizer/tiny_tokenizer.h"

namespace edgellm {
namespace {

using test::json;
using Words = std::vector<std::string>;

const json kBytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};

json sequence(const json& members) { return {{"type", "Sequence"}, {"pretokenizers", members}}; }

json split(const json& pattern, const std::string& behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
}

Words words_of(const json& tree, std::string_view text, bool at_start = true) {
  const tok::PreTokenizer pre_tokenizer(tok::JsonNode(tree, "test"));
  tok::PreTokenizer::Scratch scratch;
  std::vector<std::string_view> words;
  pre_tokenizer.split(text, at_start, scratch, words);
  return Words(words.begin(), words.end());
}

Words split_words(const json& pattern, const std::string& behavior, bool invert,
                  std::string_view text) {
  return words_of(sequence({split(pattern, behavior, invert), kBytes}), text);
}

TEST_CASE("Split: what becomes of the matches") {
  const json dash = {{"String", "-"}};
  const std::string text = "the-final--countdown";
  CHECK(split_words(dash, "Removed", false, text) == Words{"the", "final", "countdown"});
  CHECK(split_words(dash, "Isolated", false, text) ==
        Words{"the", "-", "final", "-", "-", "countdown"});
  CHECK(split_words(dash, "MergedWithPrevious", false, text) ==
        Words{"the-", "final-", "-", "countdown"});
  CHECK(split_words(dash, "MergedWithNext", false, text) ==
        Words{"the", "-final", "-", "-countdown"});
  CHECK(split_words(dash, "Contiguous", false, text) ==
        Words{"the", "-", "final", "--", "countdown"});
  CHECK(split_words(dash, "Removed", false, "---").empty());
}

TEST_CASE("Split: invert exchanges matches and the rest") {
  const json word = {{"Regex", "\\w+"}};
  const std::string text = "--ab, cd";
  CHECK(split_words(word, "Removed", true, text) == Words{"ab", "cd"});
  CHECK(split_words(word, "Isolated", true, text) == Words{"--", "ab", ", ", "cd"});
  CHECK(split_words(word, "MergedWithPrevious", true, text) == Words{"--", "ab, ", "cd"});
  CHECK(split_words(word, "MergedWithNext", true, text) == Words{"--ab", ", cd"});
  CHECK(split_words(word, "Contiguous", true, text) == Words{"--", "ab", ", ", "cd"});
}

TEST_CASE("Split: a string matches itself, a regex is Oniguruma's") {
  CHECK(split_words({{"String", ".*"}}, "Isolated", false, "a.*b") == Words{"a", ".*", "b"});
  CHECK(split_words({{"Regex", "(?<=a)b(?!c)"}}, "Isolated", false, "abcabdb") ==
        Words{"abca", "b", "db"});
  CHECK(split_words({{"Regex", "(?i:'S)|\\p{L}+"}}, "Isolated", false, "It's \u00c9t\u00e9") ==
        Words{"It", "'s", " ", "\u00c9t\u00e9"});
  // "Long s" folds to s.
  CHECK(split_words({{"Regex", "(?i:'s)"}}, "Isolated", false, "x'\u017fx") ==
        Words{"x", "'\u017f", "x"});
}

TEST_CASE("Split: empty matches cut, but leave no word behind") {
  CHECK(split_words({{"Regex", ""}}, "Isolated", false, "a\u00e9b") == Words{"a", "\u00e9", "b"});
  CHECK(split_words({{"Regex", "x*"}}, "Isolated", false, "axxb") == Words{"a", "xx", "b"});
  CHECK(split_words({{"Regex", "$"}}, "Isolated", false, "ab") == Words{"ab"});
}

TEST_CASE("ByteLevel: GPT-2's pattern and the space in front") {
  json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  CHECK(words_of(byte_level, "I'll be 42,  ok?") ==
        Words{"I", "'ll", " be", " 42", ",", " ", " ok", "?"});
  CHECK(words_of(byte_level, "").empty());
  byte_level["add_prefix_space"] = true;
  CHECK(words_of(byte_level, "so it is") == Words{" so", " it", " is"});
  CHECK(words_of(byte_level, " so") == Words{" so"});
  CHECK(words_of(byte_level, "\nso") == Words{" ", "\n", "so"});
  // Every word that a step before it left gets its own space.
  byte_level["use_regex"] = false;
  CHECK(words_of(sequence({split({{"String", "-"}}, "Removed"), byte_level}), "a- b-c") ==
        Words{" a", " b", " c"});
}

TEST_CASE("steps behind ByteLevel see its alphabet") {
  CHECK(words_of(sequence({kBytes, split({{"String", "\u0120"}}, "Isolated")}), "a b\u00e9") ==
        Words{"a", " ", "b\u00e9"});
  CHECK(words_of(sequence({kBytes, split({{"String", " "}}, "Isolated")}), "a b") == Words{"a b"});
  // The two bytes of e with acute are two letters there.
  CHECK(words_of(sequence({kBytes, split({{"Regex", "."}}, "Isolated")}), "\u00e9") ==
        Words{"\xc3", "\xa9"});
}

TEST_CASE("Digits and Punctuation") {
  const auto digits = [](bool individual) {
    return sequence({{{"type", "Digits"}, {"individual_digits", individual}}, kBytes});
  };
  CHECK(words_of(digits(true), "a12\u00bd \u0663b") ==
        Words{"a", "1", "2", "\u00bd", " ", "\u0663", "b"});
  CHECK(words_of(digits(false), "a12\u00bd \u0663b") == Words{"a", "12\u00bd", " ", "\u0663", "b"});
  json punctuation = {{"type", "Punctuation"}};
  CHECK(words_of(sequence({punctuation, kBytes}), "a<=\u3002b") ==
        Words{"a", "<", "=", "\u3002", "b"});
  punctuation["behavior"] = "Contiguous";
  CHECK(words_of(sequence({punctuation, kBytes}), "a<=\u3002b") == Words{"a", "<=\u3002", "b"});
}

TEST_CASE("a sequence goes from cut to cut") {
  CHECK(words_of(sequence({split({{"Regex", "\\d{1,3}"}}, "Isolated"),
                           sequence({split({{"String", "2"}}, "Removed"), kBytes})}),
                 "12345-2") == Words{"1", "3", "45", "-"});
}

TEST_CASE("a pattern that explodes ends in an error") {
  // The b at the end keeps Oniguruma from seeing at once that nothing can match.
  try {
    (void)split_words({{"Regex", "(?:a|aa)+b"}}, "Isolated", false, std::string(58, 'a') + "cb");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kRuntime);
    CHECK_THAT(error.what(), Catch::Contains("60 bytes"));
  }
}

}  // namespace
}  // namespace edgellm
