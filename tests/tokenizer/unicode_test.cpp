#include "tokenizer/unicode.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "tokenizer/normal_form.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {
namespace {

constexpr size_t kValid = std::string_view::npos;

TEST_CASE("every character is valid UTF-8, and only the shortest form") {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    tok::append_utf8(text, c);
    const tok::Utf8Unit unit = tok::read_utf8(text, 0);
    const bool read_back = unit.kind == tok::Utf8Unit::Kind::kCharacter && unit.character == c &&
                           unit.n_bytes == text.size();
    if (!read_back || find_invalid_utf8(text) != kValid) {
      FAIL("U+" << std::hex << static_cast<uint32_t>(c));
    }
  }
}

TEST_CASE("surrogates, overlong forms, values too large and stray bytes are invalid") {
  for (const std::string bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xed\xa0\x80",
        "\xed\xbf\xbf", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe4\xb8", "\xf0\x9f\x98", "\xc3x", "\xe4\xb8x"}) {
    // In front of ASCII, behind it, and at every place relative to the eight-byte steps.
    for (size_t n = 0; n < 20; ++n) {
      CHECK(find_invalid_utf8(std::string(n, 'a') + bad) == n);
      CHECK(find_invalid_utf8(std::string(n, 'a') + "\u00e9" + bad + "aaaaaaaaaaaa") == n + 2);
    }
  }
  CHECK(find_invalid_utf8("") == kValid);
  CHECK(find_invalid_utf8(std::string(1, '\0')) == kValid);
  CHECK(find_invalid_utf8("aaaaaaa\u00e9\u4e2d\U0001F600aaaaaaaaa") == kValid);
}

TEST_CASE("characters are found from behind") {
  const std::string text = "a\u00e9\u4e2d\U0001F600";
  CHECK(tok::character_before(text, text.size()) == U'\U0001F600');
  CHECK(tok::previous_character(text, text.size()) == 6);
  CHECK(tok::character_before(text, 6) == U'\u4e2d');
  CHECK(tok::character_before(text, 3) == U'\u00e9');
  CHECK(tok::previous_character(text, 1) == 0);
}

TEST_CASE("NFC") {
  CHECK(tok::to_form("", tok::NormalForm::kNfc) == "");
  CHECK(tok::to_form("e\u0301", tok::NormalForm::kNfc) == "\u00e9");
  CHECK(tok::to_form("\u212b", tok::NormalForm::kNfc) == "\u00c5");              // angstrom sign
  CHECK(tok::to_form("\u1100\u1161\u11a8", tok::NormalForm::kNfc) == "\uac01");  // Hangul
  CHECK(tok::to_form("\u0958", tok::NormalForm::kNfc) == "\u0915\u093c");  // composition exclusion
  CHECK(tok::to_form("q\u0307\u0323", tok::NormalForm::kNfc) == "q\u0323\u0307");  // reordering
  CHECK(tok::to_form("\u1e69", tok::NormalForm::kNfc) == "\u1e69");
  CHECK(tok::to_form("s\u0307\u0323", tok::NormalForm::kNfc) ==
        "\u1e69");  // reordering, then twice
  CHECK(tok::to_form("\u0344", tok::NormalForm::kNfc) == "\u0308\u0301");
  const std::string with_nul("a\0e\u0301", 5);
  CHECK(tok::to_form(with_nul, tok::NormalForm::kNfc) == std::string("a\0\u00e9", 4));
  CHECK_FALSE(tok::may_change("caf\u00e9 \u02ff", tok::NormalForm::kNfc));
  CHECK(tok::may_change("e\u0300", tok::NormalForm::kNfc));
  CHECK(tok::may_change("\u212b", tok::NormalForm::kNfc));
}

// What came after Unicode 9 stays as it is, and nothing is ordered or composed across it.
TEST_CASE("young characters take no part in normalisation") {
  CHECK(tok::to_form("\u32ff\u32d0", tok::NormalForm::kNfkc) == "\u32ff\u30a2");   // 12.1, 1.1
  CHECK(tok::to_form("q\u09fe\u0323", tok::NormalForm::kNfc) == "q\u09fe\u0323");  // 11
  CHECK(tok::to_form("q\u0307\u0323", tok::NormalForm::kNfc) == "q\u0323\u0307");
  CHECK(tok::to_form("\U00011935\U00011930", tok::NormalForm::kNfc) ==
        "\U00011935\U00011930");  // 13: would compose
}

TEST_CASE("a long run of marks keeps the order of equals") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  // Below (class 220) and above (230) in random order; none composes with q.
  const std::string below[] = {"\u0316", "\u0317", "\u0318"}, above[] = {"\u0300", "\u0301"};
  std::string text = "q", all_below, all_above;
  for (int i = 0; i < 1000; ++i) {
    const bool is_below = random() % 2 == 0;
    const std::string& mark = is_below ? below[random() % 3] : above[random() % 2];
    text += mark;
    (is_below ? all_below : all_above) += mark;
  }
  CHECK(tok::to_form(text, tok::NormalForm::kNfc) == "q" + all_below + all_above);
}

TEST_CASE("properties") {
  for (const char32_t c : U"\t\n\r \u0085\u00a0\u1680\u2003\u2028\u202f\u205f\u3000") {
    if (c != 0) CHECK(tok::is_white_space(c));
  }
  for (const char32_t c : U"a0_\u200b\u180e\ufeff") CHECK_FALSE(tok::is_white_space(c));
  for (const char32_t c : U"aZ5_\u00e9\u0301\u4e2d\u2160\u24b6\u200d\u0663") {
    if (c != 0) CHECK(tok::is_word(c));
  }
  for (const char32_t c : U" -<\u00bd\u2460\u20ac\U0001F600") CHECK_FALSE(tok::is_word(c));
  for (const char32_t c : U"5\u00bd\u2160\u0663\u2460") {
    if (c != 0) CHECK(tok::is_numeric(c));
  }
  for (const char32_t c : U"a-\u4e00") CHECK_FALSE(tok::is_numeric(c));
  // U+166D was punctuation in Unicode 8; U+09FD became a character in 10.
  for (const char32_t c : U"!+<=`~$_\u3002\u00bf\u166d") {
    if (c != 0) CHECK(tok::is_punctuation(c));
  }
  for (const char32_t c : U"a5 \u20ac\u00b1\u09fd") CHECK_FALSE(tok::is_punctuation(c));
}

}  // namespace
}  // namespace edgellm
