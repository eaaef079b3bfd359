// What a tokenizer.json can have wrong: one line that says what and where, and nothing worse.
#include <catch2/catch.hpp>
#include <functional>
#include <random>

#include "base/error.h"
#include "tests/tokenizer/tiny_tokenizer.h"

namespace edgellm {
namespace {

using namespace test;

// The error that loading `text` ends in; fails the test if there is none.
Error error_of(const std::string& text) {
  try {
    (void)Tokenizer::from_json(text, "tiny.json");
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error");
  throw 0;  // not reached
}

void check_refused(const std::string& text, ExitCode code,
                   const std::vector<std::string>& mentions) {
  const Error error = error_of(text);
  const std::string message = error.what();
  INFO(message);
  CHECK(error.code() == code);
  CHECK_THAT(message, Catch::StartsWith("tiny.json:"));
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.size() < 400);
  for (const std::string& mention : mentions) CHECK_THAT(message, Catch::Contains(mention));
}

struct Case {
  std::string name;
  std::function<void(json&)> change;
  std::vector<std::string> mentions;
};

void check_all(ExitCode code, const std::vector<Case>& cases) {
  for (const Case& item : cases) {
    INFO(item.name);
    json tree = tiny_tokenizer({{"a", "b"}});
    add_token(tree, "<s>");
    (void)load(tree);
    item.change(tree);
    check_refused(tree.dump(), code, item.mentions);
  }
}

TEST_CASE("unsupported parts are refused by name") {
  const json unigram = {
      {"type", "Unigram"}, {"unk_id", 0}, {"vocab", json::array({json::array({"a", -1.5})})}};
  check_all(
      ExitCode::kUnsupported,
      {
          {"version", [](json& t) { t["version"] = "2.0"; }, {"version", "2.0", "1.0"}},
          {"Unigram", [&](json& t) { t["model"] = unigram; }, {"model.type", "Unigram", "BPE"}},
          {"WordPiece", [](json& t) { t["model"]["type"] = "WordPiece"; }, {"WordPiece"}},
          {"byte_fallback that can happen",
           [](json& t) {
             t["model"]["byte_fallback"] = true;
             t["model"]["vocab"].erase("z");
           },
           {"model.byte_fallback", "every byte"}},
          {"dropout", [](json& t) { t["model"]["dropout"] = 0.1; }, {"model.dropout"}},
          {"prefix",
           [](json& t) { t["model"]["continuing_subword_prefix"] = "##"; },
           {"continuing_subword_prefix", "##"}},
          {"suffix",
           [](json& t) { t["model"]["end_of_word_suffix"] = "</w>"; },
           {"end_of_word_suffix", "</w>"}},
          {"unk that can happen",
           [](json& t) {
             t["model"]["unk_token"] = "?";
             t["model"]["vocab"].erase("z");
           },
           {"unk_token", "every byte"}},
          {"normalizer", [](json& t) { t["normalizer"]["type"] = "Lowercase"; }, {"Lowercase"}},
          {"normalizer in a sequence",
           [](json& t) {
             t["normalizer"] = {{"type", "Sequence"},
                                {"normalizers", {{{"type", "NFC"}}, {{"type", "Precompiled"}}}}};
           },
           {"normalizer.normalizers[1]", "Precompiled", "NFC"}},
          {"too many normalizers",
           [](json& t) {
             t["normalizer"] = {
                 {"type", "Sequence"},
                 {"normalizers", json(100, {{"type", "Prepend"}, {"prepend", "x"}})}};
           },
           {"normalizer.normalizers[32]", "32 steps"}},
          {"too many decoders",
           [](json& t) {
             t["decoder"] = {{"type", "Sequence"},
                             {"decoders", json(100'000, {{"type", "ByteFallback"}})}};
           },
           {"decoder.decoders[32]", "32 steps"}},
          {"empty pattern",
           [](json& t) {
             t["normalizer"] = {
                 {"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
           },
           {"normalizer.pattern.String", "empty"}},
          {"two ByteLevels",
           [](json& t) {
             const json one = t["pre_tokenizer"];
             t["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {one, one}}};
           },
           {"pretokenizers[1]", "second ByteLevel"}},
          {"pre-tokenizer",
           [](json& t) { t["pre_tokenizer"]["type"] = "UnicodeScripts"; },
           {"pre_tokenizer", "UnicodeScripts", "Metaspace"}},
          {"Metaspace behind ByteLevel",
           [](json& t) {
             const json one = t["pre_tokenizer"];
             t["pre_tokenizer"] = {
                 {"type", "Sequence"},
                 {"pretokenizers", {one, {{"type", "Metaspace"}, {"replacement", "_"}}}}};
           },
           {"pretokenizers[1]", "Metaspace behind ByteLevel"}},
          {"behavior",
           [](json& t) {
             t["pre_tokenizer"] = {{"type", "Split"},
                                   {"pattern", {{"String", "x"}}},
                                   {"behavior", "Shuffled"},
                                   {"invert", false}};
           },
           {"behavior", "Shuffled", "Isolated"}},
          {"post-processor",
           [](json& t) { t["post_processor"]["type"] = "BertProcessing"; },
           {"BertProcessing", "TemplateProcessing"}},
          {"decoder",
           [](json& t) { t["decoder"]["type"] = "WordPiece"; },
           {"decoder", "WordPiece", "ByteFallback"}},
          {"decoders",
           [](json& t) {
             t["decoder"] = {{"type", "Sequence"},
                             {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteLevel"}}}}};
           },
           {"decoders[1]", "ByteLevel behind Fuse"}},
          {"decoder behind ByteLevel",
           [](json& t) {
             t["decoder"] = {{"type", "Sequence"},
                             {"decoders", {{{"type", "ByteLevel"}}, {{"type", "Metaspace"}}}}};
           },
           {"decoders[1]", "Metaspace"}},
          {"long Replace behind Fuse",
           [](json& t) {
             t["decoder"] = {
                 {"type", "Sequence"},
                 {"decoders",
                  {{{"type", "Fuse"}},
                   {{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "x"}}}}};
           },
           {"decoders[1]", "Replace", "Fuse"}},
          {"long added token",
           [](json& t) { t["added_tokens"][0]["content"] = std::string(2000, 'x'); },
           {"added_tokens[0]", "2000", "1024"}},
      });
}

// Three of these make 2^30 letters of one.
TEST_CASE("steps that make much of little are refused, not carried out") {
  json tree = tiny_tokenizer();
  const json replace = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1024, 'a')}};
  const json thrice = {replace, replace, replace};
  json decoding = tree;
  decoding["decoder"] = {{"type", "Sequence"}, {"decoders", thrice}};
  check_refused(decoding.dump(), ExitCode::kUnsupported, {"decoder.decoders[1]", "longer than"});
  tree["normalizer"] = {{"type", "Sequence"}, {"normalizers", thrice}};
  try {
    (void)load(tree).encode("aaa", false);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUnsupported);
    CHECK_THAT(error.what(), Catch::Contains("normalizer"));
  }
}

void check_gives_up(const json& tree, const std::string& text, ExitCode code,
                    const std::string& part) {
  INFO(part);
  try {
    (void)load(tree).encode(text, false);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == code);
    CHECK_THAT(error.what(), Catch::Contains(part));
  }
}

TEST_CASE("a regular expression that is slow on a text gives up") {
  json tree = tiny_tokenizer();
  const auto split = [&](const std::string& regex) {
    tree["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"},
                                {"pattern", {{"Regex", regex}}},
                                {"behavior", "Isolated"},
                                {"invert", false}},
                               tiny_tokenizer()["pre_tokenizer"]}}};
    return tree;
  };
  // With a b at the end, or the search would see at once that there is none.
  const std::string text = std::string(150'000, 'a') + "cb";
  // In the last three a single match would take hours.
  for (const char* regex :
       {"(?>a+)b", "a+b", "(?:(?:a+)+)+b", "a(?=a*b)|a", "a*a*+b", "(?=a*a*+b)c", "a*(?=a*+b)c"}) {
    INFO(regex);
    check_gives_up(split(regex), text, ExitCode::kRuntime, "gave up on 150002 bytes");
  }
  // Many words of which each is slow.
  std::string words;
  for (int i = 0; i < 10; ++i) words.append(50'000, 'a').append("xbxcxdxe ");
  json two = split("(?>a+)b|(?>a+)c|(?>a+)d|(?>a+)e");
  json& steps = two["pre_tokenizer"]["pretokenizers"];
  const json first = {{"type", "WhitespaceSplit"}};
  steps.insert(steps.begin(), first);
  check_gives_up(two, words, ExitCode::kRuntime, "time limit over");
  // Words short enough to be searched at once.
  words.clear();
  for (int i = 0; i < 100; ++i) words.append(8000, 'a').append("xbxcxdxe ");
  check_gives_up(two, words, ExitCode::kRuntime, "time limit over");
  // Long texts that take many searches are as before.
  const Ids ids =
      load(split("a|\u00e9+")).encode(std::string(300'000, 'a') + "\u00e9\u00e9b", false);
  CHECK(ids.size() == 300'005);
}

TEST_CASE("patterns whose cost nothing counts are refused") {
  json tree = tiny_tokenizer();
  const auto split = [&](const std::string& regex) {
    tree["pre_tokenizer"] = {{"type", "Split"},
                             {"pattern", {{"Regex", regex}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
    return tree.dump();
  };
  for (const char* regex :
       {"(?:a(?=a*+))*", "(a(?!b+c))+", "(?:(?:x|a(?<=a+)){2})*", "(?:a(?=(?:a(?=a*+))*))*",
        "(?:a(?=[^]b]*+))*", "(?:a(?=\\p{L}{3,}))*", "(a+)(?:(?=\\1)a)*", "((?=a{40})a){99}"}) {
    INFO(regex);
    check_refused(split(regex), ExitCode::kUnsupported,
                  {"pre_tokenizer.pattern.Regex", "reads without a limit, inside of a repeat"});
  }
  check_refused(split("(?~b)c"), ExitCode::kUnsupported, {"absent operator"});
  check_refused(split("(?<x>(?=a*+)a)\\g<x>*"), ExitCode::kUnsupported, {"subexpression call"});
  check_refused(split("(?x)(?:a # )\n(?=a*+))*"), ExitCode::kUnsupported, {"extended pattern"});
  for (const char* regex :
       {R"(\s+(?!\S)|\s+)", "(?:(?!ab).)*", R"((?:a\(?=a*+)*)", "(?:a[(?=]+)*", "(?=a*b)a|.",
        R"((?:\x{28}\p{Lu}+)*)", "(?i:'s|'t)?(?=x+)", "(?:(?#(?=a*)a)*"}) {
    INFO(regex);
    (void)load(json::parse(split(regex)));
  }
}

TEST_CASE("a file with more steps, ids or longer patterns than any is refused") {
  const json bytes = tiny_tokenizer()["pre_tokenizer"];
  json tree = tiny_tokenizer();
  json many = {{"type", "Sequence"}, {"pretokenizers", json::array()}};
  for (int i = 0; i < 10'000; ++i) {
    many["pretokenizers"].push_back({{"type", "Digits"}, {"individual_digits", true}});
  }
  many["pretokenizers"].push_back(bytes);
  tree["pre_tokenizer"] = many;
  check_refused(tree.dump(), ExitCode::kUnsupported, {"pre_tokenizer", "32 steps"});

  for (const std::string& regex : {std::string(5000, 'a'), "(?i)" + std::string(100'000, 'a')}) {
    tree["pre_tokenizer"] = {{"type", "Split"},
                             {"pattern", {{"Regex", regex}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
    check_refused(tree.dump(), ExitCode::kUnsupported,
                  {"pre_tokenizer.pattern.Regex", std::to_string(regex.size()), "4096 bytes"});
  }

  tree["pre_tokenizer"] = bytes;
  json pieces = json::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}});
  for (int i = 0; i < 100; ++i) pieces.push_back({{"SpecialToken", {{"id", "s"}, {"type_id", 0}}}});
  const json post = {{"type", "TemplateProcessing"},
                     {"single", pieces},
                     {"pair", json::array()},
                     {"special_tokens",
                      {{"s", {{"id", "s"}, {"ids", json::array({1, 2, 3})}, {"tokens", {"a"}}}}}}};
  tree["post_processor"] = post;
  CHECK(load(tree).encode("x", true).size() == 301);
  json list = json::array();
  for (int i = 0; i < 4; ++i) list.push_back(post);
  tree["post_processor"] = {{"type", "Sequence"}, {"processors", list}};
  check_refused(tree.dump(), ExitCode::kUnsupported, {"post_processor", "1200 special tokens"});
  list = json::array();
  for (int i = 0; i < 40; ++i) list.push_back({{"type", "ByteLevel"}});
  tree["post_processor"] = {{"type", "Sequence"}, {"processors", list}};
  check_refused(tree.dump(), ExitCode::kUnsupported, {"post_processor", "32 steps"});
}

TEST_CASE("pre-tokenizers that double a text again and again are ended") {
  json tree = tiny_sentencepiece({"a", "b"});
  tree["normalizer"] = nullptr;
  json steps = json::array();
  for (int i = 0; i < 32; ++i) {
    steps.push_back({{"type", "Metaspace"},
                     {"replacement", i % 2 == 0 ? "a" : "b"},
                     {"prepend_scheme", "always"},
                     {"split", true}});
  }
  tree["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  check_gives_up(tree, std::string(10'000, 'a'), ExitCode::kUnsupported, "pre_tokenizer");
}

TEST_CASE("harmless settings are taken") {
  json tree = tiny_tokenizer({{"a", "b"}});
  json& model = tree["model"];
  model["dropout"] = 0.0;
  model["continuing_subword_prefix"] = "";
  model["end_of_word_suffix"] = "";
  model["unk_token"] = "<unk>";  // every byte has a token, so nothing is unknown
  model["fuse_unk"] = true;
  tree["truncation"] = {{"max_length", 1}};  // a setting of another program
  tree["decoder"] = {{"type", "Sequence"},
                     {"decoders", {{{"type", "ByteLevel"}}, {{"type", "Fuse"}}}}};
  CHECK(load(tree).encode("abc", false) == Ids{256, 'c'});
}

TEST_CASE("broken parts are rejected with their place") {
  const auto split = [](const std::string& regex) {
    return json{{"type", "Split"},
                {"pattern", {{"Regex", regex}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  };
  const auto processing = [](const json& single) {
    return json{{"type", "TemplateProcessing"},
                {"single", single},
                {"special_tokens",
                 {{"S", {{"id", "S"}, {"ids", {257}}}}, {"T", {{"id", "T"}, {"ids", {999}}}}}}};
  };
  const json a = {{"Sequence", {{"id", "A"}}}}, b = {{"Sequence", {{"id", "B"}}}};
  const json t_token = {{"SpecialToken", {{"id", "T"}}}},
             u_token = {{"SpecialToken", {{"id", "U"}}}};
  check_all(
      ExitCode::kModelFile,
      {
          {"no model", [](json& t) { t.erase("model"); }, {"\"model\"", "missing"}},
          {"not an object", [](json& t) { t = json::array({1}); }, {"expected an object"}},
          {"model is a string",
           [](json& t) { t["model"] = "BPE"; },
           {"model", "expected an object"}},
          {"no vocab", [](json& t) { t["model"].erase("vocab"); }, {"model", "vocab"}},
          {"no merges", [](json& t) { t["model"].erase("merges"); }, {"model", "merges"}},
          {"vocab is a list",
           [](json& t) { t["model"]["vocab"] = json::array({"a"}); },
           {"model.vocab", "expected an object"}},
          {"merges is an object",
           [](json& t) { t["model"]["merges"] = json::object(); },
           {"model.merges", "expected an array"}},
          {"negative id", [](json& t) { t["model"]["vocab"]["a"] = -1; }, {"\"a\"", "id"}},
          {"fraction", [](json& t) { t["model"]["vocab"]["a"] = 1.5; }, {"\"a\"", "id"}},
          {"id 2^31",
           [](json& t) { t["model"]["vocab"]["a"] = 2147483648u; },
           {"\"a\"", "2147483648"}},
          {"id 2^31-1",
           [](json& t) { t["model"]["vocab"]["a"] = 2147483647; },
           {"\"a\"", "2147483647", "expected ids below"}},
          {"id twice", [](json& t) { t["model"]["vocab"]["a"] = 98; }, {"98", "appeared before"}},
          {"id is an object",
           [](json& t) { t["model"]["vocab"]["a"] = json::object(); },
           {"\"a\"", "id"}},
          {"merge of unknown",
           [](json& t) {
             t["model"]["merges"].push_back({"q\nq", "b"});
           },
           {"model.merges[1]", "q\\x0aq"}},
          {"merge to unknown",
           [](json& t) { t["model"]["merges"].push_back("b a"); },
           {"model.merges[1]", "\"ba\""}},
          {"merge without space",
           [](json& t) { t["model"]["merges"].push_back("ba"); },
           {"model.merges[1]", "no space"}},
          {"merge with two spaces",
           [](json& t) { t["model"]["merges"].push_back("a b c"); },
           {"model.merges[1]", "more than one space"}},
          {"merge of one",
           [](json& t) { t["model"]["merges"].push_back(json::array({"a"})); },
           {"model.merges[1]", "fewer than two"}},
          {"merge of three",
           [](json& t) {
             t["model"]["merges"].push_back({"a", "b", "c"});
           },
           {"model.merges[1]", "more than two"}},
          {"merge of numbers",
           [](json& t) {
             t["model"]["merges"].push_back({1, 2});
           },
           {"model.merges[1]", "strings"}},
          {"ignore_merges",
           [](json& t) { t["model"]["ignore_merges"] = "yes"; },
           {"ignore_merges", "true or false", "yes"}},
          {"added id", [](json& t) { t["added_tokens"][0]["id"] = 300; }, {"<s>", "300", "257"}},
          {"added id below zero", [](json& t) { t["added_tokens"][0]["id"] = -5; }, {"id", "-5"}},
          {"added id of the vocabulary",
           [](json& t) { t["added_tokens"][0]["content"] = "ab"; },
           {"\"ab\"", "257", "256"}},
          {"added twice",
           [](json& t) { t["added_tokens"].push_back(t["added_tokens"][0]); },
           {"added_tokens[1]", "appeared before"}},
          {"added without a flag",
           [](json& t) { t["added_tokens"][0].erase("lstrip"); },
           {"added_tokens[0]", "lstrip"}},
          {"added is an object", [](json& t) { t["added_tokens"] = json::object(); }, {"array"}},
          {"added id taken",
           [](json& t) {
             t["model"]["vocab"]["a"] = 257;  // leaves a gap at 97
           },
           {"257", "taken"}},
          {"regex",
           [&](json& t) { t["pre_tokenizer"] = split("(\n"); },
           {"pre_tokenizer.pattern.Regex", "regular expression"}},
          {"pattern",
           [&](json& t) {
             t["pre_tokenizer"] = split("x");
             t["pre_tokenizer"]["pattern"] = "x";
           },
           {"pre_tokenizer.pattern", "object"}},
          {"type", [](json& t) { t["pre_tokenizer"].erase("type"); }, {"pre_tokenizer", "type"}},
          {"type is a number", [](json& t) { t["decoder"]["type"] = 7; }, {"decoder.type", "7"}},
          {"Prepend without a text",
           [](json& t) {
             t["normalizer"] = {{"type", "Prepend"}};
           },
           {"normalizer", "prepend"}},
          {"Metaspace of two characters",
           [](json& t) {
             t["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "__"}};
           },
           {"pre_tokenizer.replacement", "one character", "__"}},
          {"Metaspace of an unknown scheme",
           [](json& t) {
             t["pre_tokenizer"] = {
                 {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}};
           },
           {"prepend_scheme", "last", "never"}},
          {"Metaspace that contradicts itself",
           [](json& t) {
             t["pre_tokenizer"] = {{"type", "Metaspace"},
                                   {"replacement", "_"},
                                   {"prepend_scheme", "first"},
                                   {"add_prefix_space", false}};
           },
           {"prepend_scheme", "add_prefix_space"}},
          {"Strip of a negative count",
           [](json& t) {
             t["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}};
           },
           {"decoder.start", "-1"}},
          {"regex of Replace",
           [](json& t) {
             t["normalizer"] = {
                 {"type", "Replace"}, {"pattern", {{"Regex", "("}}}, {"content", ""}};
           },
           {"normalizer.pattern.Regex", "regular expression"}},
          {"added token that is normalised away",
           [](json& t) {
             t["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
             add_token(t, "  ")["normalized"] = true;
           },
           {"added_tokens[1]", "0 bytes"}},
          {"added tokens that are normalised alike",
           [](json& t) {
             t["normalizer"] = {{"type", "NFKC"}};
             add_token(t, "fi")["normalized"] = true;
             add_token(t, "\ufb01")["normalized"] = true;
           },
           {"added_tokens[2]", "another added token"}},
          {"template without A",
           [&](json& t) { t["post_processor"] = processing(json::array()); },
           {"single", "once"}},
          {"template with A twice",
           [&](json& t) {
             t["post_processor"] = processing({a, a});
           },
           {"single", "2 times"}},
          {"template with B",
           [&](json& t) {
             t["post_processor"] = processing({a, b});
           },
           {"single[1]", "\"A\""}},
          {"template with an unknown token",
           [&](json& t) {
             t["post_processor"] = processing({a, t_token});
           },
           {"ids[0]", "999"}},
          {"template with an unknown name",
           [&](json& t) {
             t["post_processor"] = processing({a, u_token});
           },
           {"special_tokens", "\"U\""}},
      });
}

TEST_CASE("what is no JSON at all is rejected") {
  const std::string good = tiny_tokenizer().dump();
  check_refused("", ExitCode::kModelFile, {"not valid JSON"});
  check_refused(good.substr(0, good.size() / 2), ExitCode::kModelFile, {"not valid JSON"});
  check_refused(good + "x", ExitCode::kModelFile, {"not valid JSON"});
  check_refused("{\"a\": \"\xff\"}", ExitCode::kModelFile, {"not valid JSON", "byte"});
  check_refused("{\"a\": \"\\ud800\"}", ExitCode::kModelFile, {"not valid JSON"});
  check_refused(std::string(1'000'000, '['), ExitCode::kModelFile, {"deep"});
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"model\":";
  check_refused(deep, ExitCode::kModelFile, {"deep"});
}

TEST_CASE("tables that appear twice are rejected") {
  check_refused(R"({"model":{"vocab":{"a":0},"vocab":{"a":0},"merges":[]}})", ExitCode::kModelFile,
                {"model.vocab", "twice"});
  check_refused(R"({"model":{"merges":[],"merges":[],"vocab":{}}})", ExitCode::kModelFile,
                {"model.merges", "twice"});
  check_refused(R"({"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]},)"
                R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false}})",
                ExitCode::kModelFile, {"\"a\"", "appeared before"});
}

// Damage of every kind: loading ends in a tokenizer or in an Error, and a tokenizer works.
void damage(const std::string& good) {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  constexpr std::string_view kLikely = "{}[]\",:0123456789-.eE\\abntrue \xc3\xff";
  int n_loaded = 0;
  for (int repeat = 0; repeat < 4000; ++repeat) {
    std::string text = good;
    for (size_t n = 1 + random() % 3; n > 0; --n) {
      const size_t where = random() % text.size();
      switch (random() % 4) {
        case 0:
          text.erase(where, 1 + random() % 8);
          break;
        case 1:
          text.insert(where, 1, kLikely[random() % kLikely.size()]);
          break;
        case 2:
          text.insert(where, text.substr(random() % text.size(), random() % 64));
          break;
        default:
          text[where] = kLikely[random() % kLikely.size()];
      }
    }
    try {
      const Tokenizer tokenizer = Tokenizer::from_json(text, "tiny.json");
      ++n_loaded;
      (void)tokenizer.decode(tokenizer.encode("abc <s>\u00e9", true), true);
    } catch (const Error& error) {
      const std::string message = error.what();
      if (message.find('\n') != std::string::npos || message.size() > 1000) FAIL(message);
    }
  }
  CHECK(n_loaded > 0);
  CHECK(n_loaded < 4000);
}

TEST_CASE("damaged files never do worse than an error") {
  json tree = tiny_tokenizer({{"a", "b"}, {"ab", "c"}});
  add_token(tree, "<s>")["special"] = true;
  tree["normalizer"] = {{"type", "NFC"}};
  tree["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"Regex", "\\p{L}+|\\s+"}}},
                              {"behavior", "MergedWithNext"},
                              {"invert", false}},
                             tree["pre_tokenizer"]}}};
  damage(tree.dump());
  damage(tiny_sentencepiece({"\u2581", "a", "\u2581a"}, {{"\u2581", "a"}}).dump());
}

}  // namespace
}  // namespace edgellm
