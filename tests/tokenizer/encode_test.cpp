// Text to ids and back, on vocabularies made for the purpose.
#include <catch2/catch.hpp>
#include <chrono>
#include <latch>
#include <map>
#include <random>
#include <thread>

#include "base/error.h"
#include "tests/tokenizer/tiny_tokenizer.h"

namespace edgellm {
namespace {

using namespace test;

// The definition of BPE, word for word: again and again the pair of lowest rank, the leftmost
// first.
Ids merge_slowly(const std::string& word,
                 const std::vector<std::pair<std::string, std::string>>& merges) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  std::map<std::string, int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) ids[std::string(1, static_cast<char>(byte))] = byte;
  for (size_t i = 0; i < merges.size(); ++i) {
    ranks[merges[i]] = i;
    ids[merges[i].first + merges[i].second] = static_cast<int32_t>(256 + i);
  }
  while (true) {
    size_t best = merges.size(), where = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto rank = ranks.find({parts[i], parts[i + 1]});
      if (rank != ranks.end() && rank->second < best) {
        best = rank->second;
        where = i;
      }
    }
    if (best == merges.size()) break;
    parts[where] += parts[where + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(where) + 1);
  }
  Ids result;
  for (const std::string& part : parts) result.push_back(ids.at(part));
  return result;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_CASE("without merges every byte is a token") {
  const Tokenizer tokenizer = load(tiny_tokenizer());
  const std::string text = "h\u00e9 \n\U0001F600" + std::string(1, '\0') + "~";
  CHECK(tokenizer.encode(text, false) == bytes_of(text));
  CHECK(tokenizer.encode("", true).empty());
  CHECK(tokenizer.decode(bytes_of(text), false) == text);
  CHECK(tokenizer.max_id() == 255);
}

TEST_CASE("merges go by rank, then from the left") {
  const Tokenizer tokenizer = load(tiny_tokenizer({{"b", "c"}, {"a", "b"}, {"a", "a"}}));
  CHECK(tokenizer.encode("abc", false) == Ids{'a', 256});
  CHECK(tokenizer.encode("abd", false) == Ids{257, 'd'});
  CHECK(tokenizer.encode("aaa", false) == Ids{258, 'a'});
}

TEST_CASE("merges may be strings or pairs") {
  json tree = tiny_tokenizer({{"a", "b"}, {" ", "ab"}});
  const Ids expected = load(tree).encode("ab ab", false);
  CHECK(expected == Ids{256, 257});
  tree["model"]["merges"] = {"#version: 0.2", "a b", "\u0120 ab"};
  CHECK(load(tree).encode("ab ab", false) == expected);
}

TEST_CASE("of equal merges the last one counts") {
  json tree = tiny_tokenizer({{"a", "b"}, {"b", "c"}});
  CHECK(load(tree).encode("abc", false) == Ids{256, 'c'});
  tree["model"]["merges"].push_back({"a", "b"});  // now behind (b, c)
  CHECK(load(tree).encode("abc", false) == Ids{'a', 257});
}

TEST_CASE("short and long words merge alike") {
  // Tokens that nest in many ways, in an order that makes merges block each other.
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"a", "b"},   {"b", "b"},       {"ab", "a"}, {"a", "a"},   {"aa", "aa"},
      {"bb", "a"},  {"b", "a"},       {"c", "a"},  {"aba", "c"}, {"bba", "ab"},
      {"ca", "bb"}, {"aaaa", "aaaa"}, {"c", "c"},  {"cc", "ab"}};
  const Tokenizer tokenizer = load(tiny_tokenizer(merges));
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  // Both sides of the border between the two algorithms, and well beyond.
  for (const size_t length : {1, 2, 3, 17, 46, 47, 48, 49, 50, 63, 64, 65, 200, 1000}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::string word(length, ' ');
      for (char& c : word) c = "aaabbc"[random() % 6];
      INFO(word);
      CHECK(tokenizer.encode(word, false) == merge_slowly(word, merges));
    }
  }
}

TEST_CASE("ignore_merges takes a word that is a token as it is") {
  json tree = tiny_tokenizer({{"a", "b"}});
  tree["model"]["vocab"]["xyz"] = 257;  // no merge leads here
  CHECK(load(tree).encode("xyz", false) == bytes_of("xyz"));
  tree["model"]["ignore_merges"] = true;
  CHECK(load(tree).encode("xyz", false) == Ids{257});
  CHECK(load(tree).encode("xyzab", false) == joined(bytes_of("xyz"), {256}));
}

TEST_CASE("added tokens are cut out, the longest of the leftmost") {
  json tree = tiny_tokenizer({{"a", "b"}});
  add_token(tree, "<a>");     // 257
  add_token(tree, "<a><b>");  // 258
  add_token(tree, "<b>");     // 259
  add_token(tree, "><");      // 260: begins later than the others, so it loses
  const Tokenizer tokenizer = load(tree);
  CHECK(tokenizer.encode("ab<a>ab", false) == Ids{256, 257, 256});
  CHECK(tokenizer.encode("<a><b><a><c>", false) == joined({258, 257}, bytes_of("<c>")));
  CHECK(tokenizer.encode("<a", false) == bytes_of("<a"));
  CHECK(tokenizer.encode("x><b>", false) == joined({'x', 260}, bytes_of("b>")));
  CHECK(tokenizer.token_bytes(258) == "<a><b>");
  CHECK(tokenizer.token_bytes(256) == "ab");
  CHECK(tokenizer.max_id() == 260);
}

TEST_CASE("lstrip and rstrip swallow white space") {
  json tree = tiny_tokenizer();
  add_token(tree, "<l>")["lstrip"] = true;  // 256
  add_token(tree, "<r>")["rstrip"] = true;  // 257
  add_token(tree, "  ");                    // 258
  const Tokenizer tokenizer = load(tree);
  CHECK(tokenizer.encode("a \t\u3000<l> b", false) == Ids{'a', 256, ' ', 'b'});
  CHECK(tokenizer.encode("a <r> \n\u00a0b", false) == Ids{'a', ' ', 257, 'b'});
  CHECK(tokenizer.encode("<r> <l>", false) == Ids{257, 256});
  // A token inside the swallowed space is found all the same.
  CHECK(tokenizer.encode("<r>   b", false) == Ids{257, 258, ' ', 'b'});
}

TEST_CASE("a token of white space that strips both sides swallows its like") {
  json tree = tiny_tokenizer();
  json& token = add_token(tree, "  ");  // 256
  token["lstrip"] = true;
  token["rstrip"] = true;
  const Tokenizer tokenizer = load(tree);
  CHECK(tokenizer.encode("x       y  z", false) == Ids{'x', 256, 'y', 256, 'z'});
}

TEST_CASE("single_word tokens stand alone") {
  json tree = tiny_tokenizer();
  add_token(tree, "<w>")["single_word"] = true;  // 256
  const Tokenizer tokenizer = load(tree);
  CHECK(tokenizer.encode("<w> <w>.", false) == Ids{256, ' ', 256, '.'});
  for (const std::string neighbour : {"a", "_", "7", "\u00e9", "\u4e2d", "\u0301", "\u24b6"}) {
    INFO(neighbour);
    CHECK(tokenizer.encode(neighbour + "<w>", false) == bytes_of(neighbour + "<w>"));
    CHECK(tokenizer.encode("<w>" + neighbour, false) == bytes_of("<w>" + neighbour));
  }
  CHECK(tokenizer.encode("-<w>\u2460", false) == joined({'-', 256}, bytes_of("\u2460")));
}

TEST_CASE("NFC composes, except in tokens that are looked for before") {
  // Outside the byte-level alphabet: e with acute, say, is a letter of it, and decodes as a byte.
  const std::string decomposed = "a\u0323", composed = "\u1ea1";
  json tree = tiny_tokenizer();
  add_token(tree, "<" + decomposed + ">");                       // 256
  add_token(tree, "[" + decomposed + "]")["normalized"] = true;  // 257
  CHECK(load(tree).encode(decomposed, false) == bytes_of(decomposed));
  CHECK(load(tree).encode("[" + decomposed + "]", false) == Ids{257});

  for (const json& normalizer :
       {json{{"type", "NFC"}},
        json{{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "NFC"}}}}}}) {
    tree["normalizer"] = normalizer;
    const Tokenizer tokenizer = load(tree);
    CHECK(tokenizer.encode(decomposed, false) == bytes_of(composed));
    CHECK(tokenizer.encode("<" + decomposed + ">", false) == Ids{256});
    CHECK(tokenizer.encode("<" + composed + ">", false) == bytes_of("<" + composed + ">"));
    CHECK(tokenizer.encode("[" + decomposed + "]", false) == Ids{257});
    CHECK(tokenizer.encode("[" + composed + "]", false) == Ids{257});
    CHECK(tokenizer.token_bytes(256) == "<" + decomposed + ">");
    CHECK(tokenizer.token_bytes(257) == "[" + composed + "]");
  }
}

TEST_CASE("the template goes around the text when special tokens are wanted") {
  json tree = tiny_tokenizer();
  add_token(tree, "<s>")["special"] = true;   // 256
  add_token(tree, "</s>")["special"] = true;  // 257
  const json a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto special = [](const char* name) {
    return json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
  };
  const json names = {{"B", {{"id", "B"}, {"ids", {256}}, {"tokens", {"<s>"}}}},
                      {"E", {{"id", "E"}, {"ids", {257, 10}}, {"tokens", {"</s>", "x"}}}}};
  const json around = {{"type", "TemplateProcessing"},
                       {"single", {special("B"), a, special("E")}},
                       {"special_tokens", names}};
  tree["post_processor"] = around;
  CHECK(load(tree).encode("x", true) == Ids{256, 'x', 257, 10});
  CHECK(load(tree).encode("x", false) == Ids{'x'});
  CHECK(load(tree).encode("", true) == Ids{256, 257, 10});

  const json before = {
      {"type", "TemplateProcessing"}, {"single", {special("E"), a}}, {"special_tokens", names}};
  tree["post_processor"] = {{"type", "Sequence"},
                            {"processors", {{{"type", "ByteLevel"}}, around, before}}};
  CHECK(load(tree).encode("x", true) == Ids{257, 10, 256, 'x', 257, 10});
}

TEST_CASE("decoding gives bytes and can leave special tokens out") {
  json tree = tiny_tokenizer({{"\xe4\xb8", "\xad"}, {"\xe4", "\xb8"}});
  std::swap(tree["model"]["merges"][0], tree["model"]["merges"][1]);
  add_token(tree, "<s>")["special"] = true;  // 258
  add_token(tree, "a b\u4e2d");              // 259: not written in the alphabet
  const Tokenizer tokenizer = load(tree);
  CHECK(tokenizer.decode(Ids{258, 'x', 256, 259}, false) == "<s>x\u4e2da b\u4e2d");
  CHECK(tokenizer.decode(Ids{258, 'x', 256, 259}, true) == "x\u4e2da b\u4e2d");
  CHECK(tokenizer.token_bytes(257) == "\xe4\xb8");  // half a character is no matter
  CHECK(tokenizer.is_special(258));
  CHECK(!tokenizer.is_special(259));
  for (const int32_t id : {-1, 260, INT32_MAX, INT32_MIN}) {
    CHECK(tokenizer.token_bytes(id).empty());
    CHECK(!tokenizer.is_special(id));
  }
}

TEST_CASE("text that is not UTF-8 is refused with the place") {
  const Tokenizer tokenizer = load(tiny_tokenizer());
  try {
    (void)tokenizer.encode("0123456789\xff", false);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    CHECK_THAT(error.what(), Catch::Contains("byte 10"));
  }
}

TEST_CASE("a byte that the vocabulary lacks is an error, not a gap") {
  json tree = tiny_tokenizer();
  tree["model"]["vocab"].erase("z");
  const Tokenizer tokenizer = load(tree);
  CHECK(tokenizer.encode("xy", false) == bytes_of("xy"));
  try {
    (void)tokenizer.encode("xyz", false);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUnsupported);
    CHECK_THAT(error.what(), Catch::Contains("122"));
  }
}

TEST_CASE("threads share a tokenizer") {
  json tree = tiny_tokenizer({{"a", "b"}, {"ab", "ab"}});
  tree["pre_tokenizer"]["use_regex"] = true;
  const Tokenizer tokenizer = load(tree);
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += " ab" + std::string(static_cast<size_t>(i % 7), 'b');
  const Ids expected = tokenizer.encode(text, false);
  CHECK((tokenizer.decode(expected, false) == text));
  std::vector<Ids> results(4);
  std::latch start(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      result = tokenizer.encode(text, false);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) CHECK((result == expected));  // too long to print
}

// Quadratic work on these texts takes minutes to hours; the bound is for slow, busy machines.
TEST_CASE("a megabyte of one thing takes no more than seconds") {
  json tree = tiny_tokenizer({{"a", "a"}, {"aa", "aa"}, {" ", " "}, {"  ", "  "}});
  tree["normalizer"] = {{"type", "NFC"}};
  tree["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"Regex", R"(\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             tree["pre_tokenizer"]}}};
  const Tokenizer tokenizer = load(tree);
  std::string marks = "a";
  while (marks.size() < 1'000'000) marks += "\u0316\u0300";  // each pair is out of order
  for (const std::string& text : {std::string(1'000'000, 'a'), std::string(1'000'000, ' '),
                                  std::string(1'000'000, ' ') + "x", marks}) {
    const auto begin = std::chrono::steady_clock::now();
    CHECK(!tokenizer.encode(text, false).empty());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    CHECK(seconds.count() < 30);
  }
}

}  // namespace
}  // namespace edgellm
