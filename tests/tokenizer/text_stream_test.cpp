// The stream against the simplest thing that could be right: decode all, replace what is not UTF-8,
// cut at the first stop string.
#include "tokenizer/text_stream.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "tests/tokenizer/tiny_tokenizer.h"

namespace edgellm {
namespace {

using namespace test;

constexpr const char* kReplacement = "\xef\xbf\xbd";

// The Unicode standard's "substitution of maximal subparts", from its definition: try the longest
// prefix of a well-formed sequence at every place.
std::string lossy(const std::string& bytes) {
  const auto is_prefix = [&](size_t at, size_t n) {  // of some well-formed sequence, n >= 1
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[at + i]); };
    const uint8_t lead = byte(0);
    const size_t length = lead < 0x80                    ? 1
                          : lead >= 0xC2 && lead <= 0xDF ? 2
                          : lead >= 0xE0 && lead <= 0xEF ? 3
                          : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                         : 0;
    if (n > length) return false;
    for (size_t i = 1; i < n; ++i) {
      if (byte(i) < 0x80 || byte(i) > 0xBF) return false;
    }
    if (n >= 2) {
      if (lead == 0xE0 && byte(1) < 0xA0) return false;
      if (lead == 0xED && byte(1) > 0x9F) return false;
      if (lead == 0xF0 && byte(1) < 0x90) return false;
      if (lead == 0xF4 && byte(1) > 0x8F) return false;
    }
    return true;
  };
  const auto is_whole = [&](size_t at, size_t n) {
    const auto lead = static_cast<uint8_t>(bytes[at]);
    return n == (lead < 0x80 ? 1u : lead < 0xE0 ? 2u : lead < 0xF0 ? 3u : 4u);
  };
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    size_t n = 0;
    while (n < 4 && i + n < bytes.size() && is_prefix(i, n + 1)) ++n;
    if (n > 0 && is_whole(i, n)) {
      out += bytes.substr(i, n);
    } else {
      out += kReplacement;
    }
    i += std::max<size_t>(n, 1);
  }
  return out;
}

struct Result {
  std::string text;
  bool stopped;
};

Result whole_text(const Tokenizer& tokenizer, const Ids& ids,
                  const std::vector<std::string>& stops) {
  const std::string text = lossy(tokenizer.decode(ids, true));
  size_t end = std::string::npos;
  for (const std::string& stop : stops) end = std::min(end, text.find(stop));
  return {text.substr(0, end), end != std::string::npos};
}

Result streamed(const Tokenizer& tokenizer, const Ids& ids, const std::vector<std::string>& stops) {
  TextStream stream(tokenizer, stops);
  std::string text;
  for (const int32_t id : ids) {
    const bool was_stopped = stream.stopped();
    const std::string part = stream.push(id);
    if (was_stopped) CHECK(part.empty());
    CHECK(find_invalid_utf8(part) == std::string::npos);
    text += part;
  }
  text += stream.finish();
  return {text, stream.stopped()};
}

TEST_CASE("a character appears when it is whole") {
  const Tokenizer tokenizer = load(tiny_tokenizer());
  TextStream stream(tokenizer, {});
  CHECK(stream.push(0xF0).empty());
  CHECK(stream.push(0x9F).empty());
  CHECK(stream.push(0x98).empty());
  CHECK(stream.push(0x80) == "\U0001F600");
  CHECK(stream.push('a') == "a");
  CHECK(stream.push(0xE4).empty());
  CHECK(stream.finish() == kReplacement);
}

TEST_CASE("what cannot become a character is replaced at once") {
  const Tokenizer tokenizer = load(tiny_tokenizer());
  TextStream stream(tokenizer, {});
  CHECK(stream.push(0xFF) == kReplacement);
  CHECK(stream.push(0xE4).empty());
  CHECK(stream.push(0xB8).empty());
  CHECK(stream.push('x') == std::string(kReplacement) + "x");  // one for the two bytes
  CHECK(stream.push(0xED).empty());
  CHECK(stream.push(0xA0) == std::string(kReplacement) + kReplacement);  // a surrogate
  CHECK(stream.finish().empty());
}

TEST_CASE("special tokens add no text") {
  json tree = tiny_tokenizer();
  add_token(tree, "<s>")["special"] = true;  // 256
  add_token(tree, "<n>");                    // 257
  const Tokenizer tokenizer = load(tree);
  TextStream stream(tokenizer, {"<s>"});
  CHECK(stream.push(256).empty());
  CHECK(stream.push(257) == "<n>");
  CHECK(stream.push(-1).empty());
  CHECK(!stream.stopped());
}

TEST_CASE("stop strings are found across tokens and hold back no more than needed") {
  const Tokenizer tokenizer = load(tiny_tokenizer({{"a", "b"}}));
  TextStream stream(tokenizer, {"bcd"});
  CHECK(stream.push('x') == "x");
  CHECK(stream.push(256) == "a");  // "ab": the b may begin the stop string
  CHECK(stream.push('c').empty());
  CHECK(stream.push('b') == "bc");  // it did not; this b may
  CHECK(stream.push('c').empty());
  CHECK(stream.push('d').empty());
  CHECK(stream.stopped());
  CHECK(stream.push('x').empty());
  CHECK(stream.finish().empty());
}

TEST_CASE("the stop string that begins first wins") {
  const Tokenizer tokenizer = load(tiny_tokenizer());
  const std::vector<std::string> stops = {"bc", "abcd"};
  CHECK(streamed(tokenizer, bytes_of("xabcd"), stops).text == "x");
  CHECK(streamed(tokenizer, bytes_of("xabce"), stops).text == "xa");
  CHECK(streamed(tokenizer, bytes_of("xabc"), stops).text == "xa");  // at the end nothing completes
}

TEST_CASE("stop strings must be text") {
  const Tokenizer tokenizer = load(tiny_tokenizer());
  CHECK_THROWS_AS(TextStream(tokenizer, {"a", ""}), ContractViolation);
  CHECK_THROWS_AS(TextStream(tokenizer, {"\xff"}), ContractViolation);
}

TEST_CASE("any stream gives the same as the whole text") {
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"a", "b"}, {"\xc3", "\xa9"}, {"\xe4", "\xb8"}, {"b", "\xe4"}, {"ab", "ab"}, {"\xad", "a"}};
  json tree = tiny_tokenizer(merges);
  add_token(tree, "<s>")["special"] = true;
  const Tokenizer tokenizer = load(tree);
  const Ids likely = {'a',  'b',  0xC3, 0xA9, 0xE4, 0xB8, 0xAD, 0xF0, 0x9F, 0x98, 0x80,
                      0xED, 0xA0, 0xFF, 256,  257,  258,  259,  260,  261,  262};
  const std::vector<std::string> stop_texts = {"ab",         "abab",      "ba",      "aab",
                                               "b\u4e2d",    "\u00e9",    "\u4e2da", "aaaab",
                                               kReplacement, "\U0001F600"};
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  int n_stopped = 0;
  for (int repeat = 0; repeat < 20'000; ++repeat) {
    Ids ids(random() % 24);
    for (int32_t& id : ids) {
      id = random() % 2 == 0 ? likely[random() % 2] : likely[random() % likely.size()];
    }
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = stop_texts[random() % stop_texts.size()];
    const Result expected = whole_text(tokenizer, ids, stops);
    const Result got = streamed(tokenizer, ids, stops);
    if (got.text != expected.text || got.stopped != expected.stopped) {
      INFO("ids " << json(ids).dump() << " stops " << json(stops).dump());
      REQUIRE(got.text == expected.text);
      REQUIRE(got.stopped == expected.stopped);
    }
    n_stopped += got.stopped ? 1 : 0;
  }
  CHECK(n_stopped > 1000);
}

}  // namespace
}  // namespace edgellm
