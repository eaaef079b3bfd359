// Lines and events, however the bytes are cut.
#include <catch2/catch.hpp>
#include <vector>

#include "apps/compare/clients/event_reader.h"
#include "apps/compare/clients/json.h"
#include "base/lines.h"

namespace edgellm::peers {
namespace {

std::vector<std::string> lines_of(const std::string& text, size_t step) {
  LineSplitter reader(kMaxAnswerBytes);
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size(); at += step) {
    CHECK(reader.push(std::string_view(text).substr(at, step), [&](std::string_view line) {
      lines.emplace_back(line);
      return true;
    }));
  }
  lines.emplace_back(reader.rest());
  return lines;
}

TEST_CASE("lines are the same however they are cut") {
  const std::string text = "one\r\n\n{\"a\":\"\xe7\x8b\x90\"}\nt\rwo\r\r\nrest";
  const std::vector<std::string> expected = {"one", "", "{\"a\":\"\xe7\x8b\x90\"}", "t\rwo\r",
                                             "rest"};
  for (size_t step = 1; step <= text.size(); ++step) CHECK(lines_of(text, step) == expected);
}

TEST_CASE("a line without an end is not collected for ever") {
  LineSplitter reader(kMaxAnswerBytes);
  const std::string megabyte(1 << 20, 'x');
  int pushes = 0;
  while (reader.push(megabyte, [](std::string_view) { return true; })) REQUIRE(++pushes < 20);
  CHECK(reader.is_too_long());
  CHECK(pushes == 16);
}

TEST_CASE("a reader that has enough gets no more lines") {
  LineSplitter reader(kMaxAnswerBytes);
  int lines = 0;
  CHECK_FALSE(reader.push("a\nb\nc\n", [&](std::string_view) { return ++lines < 2; }));
  CHECK(lines == 2);
  CHECK_FALSE(reader.is_too_long());
}

TEST_CASE("server-sent events") {
  EventReader reader;
  std::vector<std::string> events;
  for (const char* line : {": comment", "", "data: one", "", "event: x", "data:two", "data: lines",
                           "id", "", "", "data", "", "data:  blank", "", "data: never ended"}) {
    if (reader.push(line)) events.push_back(reader.data());
  }
  CHECK(events == std::vector<std::string>{"one", "two\nlines", " blank"});
}

TEST_CASE("an event without an end is not collected for ever") {
  EventReader reader;
  const std::string line = "data:" + std::string(1 << 20, 'x');
  int lines = 0;
  while (!reader.is_too_long()) {
    REQUIRE(++lines < 20);
    CHECK_FALSE(reader.push(line));
  }
  CHECK(lines == 16);
  CHECK(reader.data().size() <= kMaxAnswerBytes);
  reader.push("");
  reader.push("data: small");
  CHECK(reader.push(""));
  CHECK_FALSE(reader.is_too_long());
  CHECK(reader.data() == "small");
}

TEST_CASE("JSON of strangers") {
  CHECK_FALSE(parse_json("{\"a\":" + std::string(200'000, '[')));
  CHECK_FALSE(parse_json("<html>"));
  CHECK_FALSE(parse_json(""));
  CHECK(text_of(*parse_json("{\"a\":\"x\xe7\x8b\"}"), "a") == "x??");  // cut within a character
  CHECK_FALSE(parse_json(std::string(1000, '\xff')));
  const auto json = *parse_json(
      R"({"n":3,"half":0.5,"minus":-1,"huge":1e300,"text":"t","deep":{"n":7},"list":[1]})");
  CHECK(count_of(json, "n") == 3);
  CHECK(count_of(json, "deep/n") == 7);
  CHECK(text_of(json, "text") == "t");
  for (const char* path : {"half", "minus", "huge", "text", "deep", "list", "none", "n/deep",
                           "list/0", "deep/none", ""}) {
    CHECK_FALSE(count_of(json, path));
  }
  CHECK_FALSE(text_of(json, "n"));
}

}  // namespace
}  // namespace edgellm::peers
