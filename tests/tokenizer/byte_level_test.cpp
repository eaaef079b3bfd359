#include "tokenizer/byte_level.h"

#include <catch2/catch.hpp>
#include <set>

namespace edgellm {
namespace {

TEST_CASE("the byte-level alphabet is GPT-2's") {
  // The corners of the ranges that stand for themselves, and of those that are moved up.
  CHECK(tok::to_alphabet(std::string(1, '\0')) == "\u0100");
  CHECK(tok::to_alphabet("\n ") == "\u010a\u0120");
  CHECK(tok::to_alphabet("!~\x7f\x80") == "!~\u0121\u0122");
  CHECK(tok::to_alphabet("\xa0\xa1\xac\xad\xae\xff") == "\u0142\u00a1\u00ac\u0143\u00ae\u00ff");

  std::set<std::string> letters;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    const std::string letter = tok::to_alphabet(one);
    letters.insert(letter);
    std::string back;
    CHECK(tok::from_alphabet(letter, back));
    CHECK(back == one);
  }
  CHECK(letters.size() == 256);

  std::string bytes;
  for (const char* other : {" ", "\n", "\u00ad", "\u0144", "a\u4e2d"}) {
    CHECK_FALSE(tok::from_alphabet(other, bytes));
  }
}

}  // namespace
}  // namespace edgellm
