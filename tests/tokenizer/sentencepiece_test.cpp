// Vocabularies of characters, as SentencePiece makes them: byte fallback, unknown characters,
// spaces written as U+2581, and decoders that take ids one by one.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <random>

#include "base/error.h"
#include "tests/tokenizer/tiny_tokenizer.h"
#include "tokenizer/decoder.h"
#include "tokenizer/text_stream.h"
#include "tokenizer/unicode.h"

namespace edgellm {
namespace {

using namespace test;

constexpr const char* kReplacement = "\xef\xbf\xbd";
constexpr int32_t kUnk = 0, kBos = 1, kFirstByte = 3, kFirstCharacter = kFirstByte + 256;

int32_t byte_id(int byte) { return kFirstByte + byte; }

// 259 is the space, then a, b and what merges make.
const std::vector<std::string> kTokens = {"\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"};
const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"a", "b"}, {"\u2581", "ab"}, {"\u2581", "a"}};
constexpr int32_t kSpace = kFirstCharacter, kA = kSpace + 1, kB = kSpace + 2, kSpaceA = kSpace + 3,
                  kAB = kSpace + 4, kSpaceAB = kSpace + 5;

json decoders(const json& list) { return {{"type", "Sequence"}, {"decoders", list}}; }

json metaspace(const std::string& scheme, bool split) {
  return {{"type", "Metaspace"},
          {"replacement", "\u2581"},
          {"prepend_scheme", scheme},
          {"split", split}};
}

TEST_CASE("LLaMA-2's pipeline") {
  const Tokenizer tokenizer = load(tiny_sentencepiece(kTokens, kMerges));
  CHECK(tokenizer.encode("ab a", false) == Ids{kSpaceAB, kSpaceA});
  CHECK(tokenizer.encode(" ab", false) == Ids{kSpace, kSpaceAB});
  CHECK(tokenizer.encode("", false).empty());
  CHECK(tokenizer.encode("a\u00e9b", false) == Ids{kSpaceA, byte_id(0xC3), byte_id(0xA9), kB});
  // Every stretch between added tokens gets its space.
  CHECK(tokenizer.encode("<s>a</s>b", false) == Ids{kBos, kSpaceA, 2, kSpace, kB});
  for (const std::string text : {"ab a", " ab", "  a", "a ", "x\u00e9 \U0001F600\n", "\u2028"}) {
    INFO(text);
    CHECK(tokenizer.decode(tokenizer.encode(text, false), false) == text);
  }
  CHECK(tokenizer.token_bytes(kSpaceAB) == " ab");
  CHECK(tokenizer.token_bytes(byte_id(0xE4)) == "\xe4");
}

TEST_CASE("unknown characters, one by one or fused") {
  json tree = tiny_sentencepiece(kTokens, kMerges);
  tree["model"]["byte_fallback"] = false;
  CHECK(load(tree).encode("xyaz", false) == Ids{kSpace, kUnk, kA, kUnk});
  tree["model"]["fuse_unk"] = false;
  CHECK(load(tree).encode("xyaz", false) == Ids{kSpace, kUnk, kUnk, kA, kUnk});

  // A character falls back if all its bytes have tokens. As in Hugging Face's tokenizers an unknown
  // one before it comes out only where something known follows.
  tree["model"]["byte_fallback"] = true;
  tree["model"]["vocab"].erase("<0xC3>");
  tree["model"]["vocab"]["c"] = byte_id(0xC3);
  CHECK(load(tree).encode("\u00e9xa", false) == Ids{kSpace, byte_id('x'), kUnk, kA});

  tree["model"]["unk_token"] = nullptr;
  try {
    (void)load(tree).encode("a\u00e9", false);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUnsupported);
    CHECK_THAT(error.what(), Catch::Contains("\u00e9"));
  }
}

TEST_CASE("Metaspace: where a space is put in front") {
  json tree = tiny_sentencepiece(kTokens, kMerges);
  tree["normalizer"] = nullptr;
  const auto encode = [&](const json& pre_tokenizer, const std::string& text) {
    tree["pre_tokenizer"] = pre_tokenizer;
    return load(tree).encode(text, false);
  };
  for (const bool split : {false, true}) {
    CHECK(encode(metaspace("first", split), "ab<s>ab ab") == Ids{kSpaceAB, kBos, kAB, kSpaceAB});
    CHECK(encode(metaspace("first", split), "<s>ab") == Ids{kBos, kAB});
    CHECK(encode(metaspace("always", split), "ab<s>ab") == Ids{kSpaceAB, kBos, kSpaceAB});
    CHECK(encode(metaspace("always", split), " ab") == Ids{kSpaceAB});
    CHECK(encode(metaspace("always", split), "\u2581\u2581") == Ids{kSpace, kSpace});
    CHECK(encode(metaspace("never", split), "ab ab") == Ids{kAB, kSpaceAB});
  }
  json legacy = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"add_prefix_space", true}};
  CHECK(encode(legacy, "ab") == Ids{kSpaceAB});
  legacy["add_prefix_space"] = false;
  CHECK(encode(legacy, "ab") == Ids{kAB});
  // The first word is gone, so what is left is not the first.
  const json sequence = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "WhitespaceSplit"}}, metaspace("first", true)}}};
  CHECK(encode(sequence, "ab ab") == Ids{kSpaceAB, kAB});
  CHECK(encode(sequence, " ab") == Ids{kAB});
}

TEST_CASE("ignore_merges looks for whole words as text") {
  json tree = tiny_sentencepiece(kTokens, kMerges);
  tree["model"]["ignore_merges"] = true;
  tree["model"]["vocab"]["\u2581bb"] = tree["model"]["vocab"].size();
  const int32_t whole = tree["model"]["vocab"]["\u2581bb"];
  CHECK(load(tree).encode("bb", false) == Ids{whole});
  CHECK(load(tree).encode("bba", false) == Ids{kSpace, kB, kB, kA});
}

// The definition of BPE over characters: again and again the pair of lowest rank, leftmost first.
struct SlowBpe {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  std::map<std::string, int32_t> ids;

  Ids encode(const std::string& text) const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < text.size();) {
      const size_t n = tok::read_utf8(text, i).n_bytes;
      const std::string character = text.substr(i, n);
      i += n;
      if (ids.contains(character)) {
        parts.push_back(character);
      } else {
        for (const char c : character) {
          parts.push_back(tok::fallback_token(static_cast<uint8_t>(c)));
        }
      }
    }
    while (true) {
      size_t best = SIZE_MAX, where = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto rank = ranks.find({parts[i], parts[i + 1]});
        if (rank != ranks.end() && rank->second < best) {
          best = rank->second;
          where = i;
        }
      }
      if (best == SIZE_MAX) break;
      parts[where] += parts[where + 1];
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(where) + 1);
    }
    Ids result;
    for (const std::string& part : parts) result.push_back(ids.at(part));
    return result;
  }
};

TEST_CASE("cutting a text where no merge can join changes nothing") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::vector<std::string> letters = {"a", "b", "\u00e9", "\u4e2d", "\U0001F600", "\u2581"};
  for (int repeat = 0; repeat < 60; ++repeat) {
    // With merges of bytes there are no cuts.
    const bool merges_bytes = repeat % 3 == 0;
    std::vector<std::string> tokens = letters;
    std::vector<std::pair<std::string, std::string>> merges;
    if (merges_bytes) {
      merges.emplace_back("<0xC3>", "<0xB6>");
      tokens.push_back("<0xC3><0xB6>");
    }
    for (int tries = 0; tries < 12; ++tries) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
      merges.emplace_back(left, right);
      tokens.push_back(left + right);
    }
    json tree = tiny_sentencepiece(tokens, merges);
    tree["normalizer"] = nullptr;
    SlowBpe slow;
    slow.ids = tree["model"]["vocab"].get<std::map<std::string, int32_t>>();
    for (size_t i = 0; i < merges.size(); ++i) slow.ranks[merges[i]] = i;
    const Tokenizer tokenizer = load(tree);
    for (const size_t length : {1, 2, 7, 47, 48, 49, 300}) {
      std::string text;
      for (size_t i = 0; i < length; ++i) {
        text += random() % 8 == 0 ? "\u00f6" : letters[random() % letters.size()];
      }
      INFO(text << " " << json(merges).dump());
      CHECK(tokenizer.encode(text, false) == slow.encode(text));
    }
  }
}

TEST_CASE("the space in front goes, and only that one") {
  const Tokenizer tokenizer = load(tiny_sentencepiece(kTokens, kMerges));
  TextStream stream(tokenizer, {});
  CHECK(stream.push(kBos).empty());  // adds no text, so the next is still the first
  CHECK(stream.push(kSpaceA) == "a");
  CHECK(stream.push(kSpaceA) == " a");
  CHECK(stream.push(kSpace) == " ");
  CHECK(stream.finish().empty());
  CHECK(tokenizer.decode(Ids{kSpace, kSpaceA}, true) == " a");
  CHECK(tokenizer.decode(Ids{kBos, kSpaceA}, false) == "<s> a");
}

TEST_CASE("a stream behind a text keeps the space in front") {
  const Tokenizer tokenizer = load(tiny_sentencepiece(kTokens, kMerges));
  const auto behind = [&](const Ids& before, int32_t id) {
    TextStream stream(tokenizer, {});
    stream.start_behind(before);
    const std::string text = stream.push(id);
    return text + stream.finish();
  };
  CHECK(behind({kBos, kSpaceA}, kSpaceA) == " a");
  CHECK(behind({kBos}, kSpaceA) == "a");
  CHECK(behind({kBos, kA, byte_id(0xC3)}, byte_id(0xA9)) == kReplacement);  // a run of its own
}

TEST_CASE("a run of byte tokens is text, or U+FFFD for each byte") {
  const Tokenizer tokenizer = load(tiny_sentencepiece(kTokens, kMerges));
  TextStream stream(tokenizer, {});
  CHECK(stream.push(byte_id(0xC3)).empty());
  CHECK(stream.push(byte_id(0xA9)).empty());  // the run may go on
  CHECK(stream.push(kA) == "\u00e9a");
  CHECK(stream.push(byte_id(0xC3)).empty());
  CHECK(stream.push(byte_id(0xA9)).empty());
  CHECK(stream.push(byte_id(0xE4)).empty());
  CHECK(stream.push(kSpaceA) == std::string(kReplacement) + kReplacement + kReplacement + " a");
  CHECK(stream.push(byte_id('x')).empty());
  CHECK(stream.finish() == "x");

  TextStream other(tokenizer, {});
  CHECK(other.push(byte_id(' ')).empty());
  CHECK(other.push(kA) == "a");  // Strip comes behind ByteFallback
  CHECK(other.push(byte_id(0xF0)).empty());
  CHECK(other.finish() == kReplacement);
}

TEST_CASE("decoders one by one") {
  json tree = tiny_sentencepiece(kTokens, kMerges);
  const auto decode = [&](const json& decoder, const Ids& ids) {
    tree["decoder"] = decoder;
    return load(tree).decode(ids, false);
  };
  const json strip = {{"type", "Strip"}, {"content", "a"}, {"start", 1}, {"stop", 2}};
  CHECK(decode(strip, {kAB, kB, kA, kA}) == "bb");
  CHECK(decode(decoders({{{"type", "Fuse"}}, strip}), {kA, kA, kB, kA, kA, kA}) == "aba");
  CHECK(decode(decoders({{{"type", "Fuse"}}, strip}), {kA, kAB, kA, kB, kA}) == "abab");

  CHECK(decode(metaspace("always", true), {kSpaceA, kSpaceA}) == "a a");
  CHECK(decode(metaspace("first", true), {kSpace, kSpaceA}) == " a");
  CHECK(decode(metaspace("never", true), {kSpaceA, kSpaceA}) == " a a");
  CHECK(decode(decoders({{{"type", "Fuse"}}, metaspace("always", true)}), {kSpaceA, kSpaceA}) ==
        "aa");
  CHECK(decode(decoders({{{"type", "ByteFallback"}}, metaspace("always", true)}),
               {byte_id(0xC3), byte_id(0xA9), kSpaceA}) == "\u00e9 a");

  const json regex = {{"type", "Replace"}, {"pattern", {{"Regex", "a+|\u2581"}}}, {"content", "."}};
  CHECK(decode(regex, {kSpaceAB, kA, kA}) == "..b..");
  const json one = {{"type", "Replace"}, {"pattern", {{"String", "b"}}}, {"content", "\u00e9"}};
  CHECK(decode(decoders({{{"type", "Fuse"}}, one}), {kAB, kB}) == "a\u00e9\u00e9");

  // None: a space between all tokens.
  CHECK(decode(nullptr, {kSpaceA, byte_id(0xC3), kB}) == "\u2581a <0xC3> b");
  CHECK(decode({{"type", "Fuse"}}, {kSpaceA, byte_id(0xC3)}) == "\u2581a<0xC3>");
  CHECK(decode(decoders(json::array()), {kSpaceA, kB}) == "\u2581ab");
}

TEST_CASE("normalizers") {
  json tree = tiny_sentencepiece(kTokens, kMerges);
  const auto normalized = [&](const json& normalizer, const std::string& text) {
    tree["normalizer"] = normalizer;
    const Tokenizer tokenizer = load(tree);
    std::string bytes;
    for (const int32_t id : tokenizer.encode(text, false)) bytes += tokenizer.token_bytes(id);
    return bytes;
  };
  const json replace = {{"type", "Replace"}, {"pattern", {{"Regex", "x+|y$"}}}, {"content", "<>"}};
  CHECK(normalized(replace, "xxayxy") == "<>ay<><>");
  const json literal = {{"type", "Replace"}, {"pattern", {{"String", ".*"}}}, {"content", ""}};
  CHECK(normalized(literal, "a.*b.") == "ab.");
  const json twice = {{"type", "Replace"}, {"pattern", {{"String", "xx"}}}, {"content", "y"}};
  CHECK(normalized(twice, "xxxaxxxx") == "yxayy");
  json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}};
  CHECK(normalized(strip, " \n\u3000a \u00a0") == "a \u00a0");
  strip["strip_right"] = true;
  CHECK(normalized(strip, " \n\u3000a \u00a0") == "a");
  CHECK(normalized(strip, " ").empty());
  const json prepend = {{"type", "Prepend"}, {"prepend", "x"}};
  const json strip_prepend = {{"type", "Sequence"}, {"normalizers", {strip, prepend}}};
  CHECK(normalized(strip_prepend, " a") == "xa");
  CHECK(normalized(strip_prepend, " ").empty());  // nothing is put before nothing
  CHECK(normalized({{"type", "NFD"}}, "\u1ea1\ufb01") == "a\u0323\ufb01");
  CHECK(normalized({{"type", "NFKD"}}, "\u1ea1\ufb01\u00bd") == "a\u0323fi1\u20442");
  CHECK(normalized({{"type", "NFKC"}}, "a\u0323\ufb01\uff21") == "\u1ea1fiA");
  CHECK(normalized({{"type", "ByteLevel"}}, " \u00e9") == "\u0120\u00c3\u00a9");
}

// Streams against the whole list, with the stop strings looked for in the whole text.
TEST_CASE("any stream of pieces gives the same as the whole text") {
  json tree = tiny_sentencepiece(kTokens, kMerges);
  const std::vector<json> some_decoders = {
      tree["decoder"], metaspace("first", true),
      decoders({{{"type", "ByteFallback"}}, metaspace("never", true)}),
      decoders({{{"type", "ByteFallback"}},
                {{"type", "Fuse"}},
                {{"type", "Strip"}, {"content", "\u00e9"}, {"start", 2}, {"stop", 3}}})};
  const Ids likely = {kSpace, kA,  kB, kSpaceA,       kAB,           kSpaceAB,
                      kBos,   700, 0,  byte_id(0xC3), byte_id(0xA9), byte_id(0xE4)};
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (const json& decoder : some_decoders) {
    tree["decoder"] = decoder;
    const Tokenizer tokenizer = load(tree);
    for (int repeat = 0; repeat < 3000; ++repeat) {
      Ids ids(random() % 16);
      for (int32_t& id : ids) id = likely[random() % likely.size()];
      const std::vector<std::string> stops = random() % 2 == 0
                                                 ? std::vector<std::string>{}
                                                 : std::vector<std::string>{"a\u00e9", "ba"};
      std::string expected = tokenizer.decode(ids, true);
      size_t end = std::string::npos;
      for (const std::string& stop : stops) end = std::min(end, expected.find(stop));
      expected = expected.substr(0, end);
      TextStream stream(tokenizer, stops);
      std::string text;
      for (const int32_t id : ids) text += stream.push(id);
      text += stream.finish();
      if (text != expected) {
        INFO(decoder.dump() << " ids " << json(ids).dump());
        REQUIRE(text == expected);
      }
    }
  }
}

// Quadratic work on these texts takes minutes to hours; the bound is for slow, busy machines.
TEST_CASE("a megabyte without a space takes no more than seconds") {
  const json tree = tiny_sentencepiece({"\u2581", "a", "aa", "aaaa", "\u2581\u2581"},
                                       {{"a", "a"}, {"aa", "aa"}, {"\u2581", "\u2581"}});
  const Tokenizer tokenizer = load(tree);
  std::string bytes;
  for (int i = 0; i < 300'000; ++i) bytes += "\u4e2d";
  for (const std::string& text :
       {std::string(1'000'000, 'a'), std::string(1'000'000, ' '), bytes}) {
    const auto begin = std::chrono::steady_clock::now();
    const Ids ids = tokenizer.encode(text, false);
    CHECK((tokenizer.decode(ids, false) == text));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    CHECK(seconds.count() < 30);
  }
}

}  // namespace
}  // namespace edgellm
