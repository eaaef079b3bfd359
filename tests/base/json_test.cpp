// Strict JSON: whom a fault is blamed on. What hostile texts there are is in tests/model.
#include "base/json.h"

#include <catch2/catch.hpp>

namespace edgellm {
namespace {

void check_fails(ExitCode code, const std::string& message, const std::function<void()>& act) {
  try {
    act();
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == code);
    CHECK(std::string(error.what()) == message);
  }
}

TEST_CASE("a fault names its source, with the exit code that the source has") {
  check_fails(ExitCode::kModelFile, "m.tmac2: metadata: JSON has the key 'a' twice", [] {
    parse_json_object(R"({"a":1,"a":2})", {"m.tmac2", "metadata"});
  });
  const JsonSource line = {.path = "line 3", .blame = ExitCode::kUsage};
  check_fails(ExitCode::kUsage, "line 3: not a JSON object",
              [&] { parse_json_object("[1]", line); });
  check_fails(ExitCode::kUsage, "line 3: not valid JSON (at byte 2)",
              [&] { parse_json_object("{", line); });
  check_fails(ExitCode::kUsage, "line 3: JSON is nested deeper than 64",
              [&] { parse_json_object(R"({"a":)" + std::string(1000, '['), line); });

  const Json json = parse_json_object(R"({"a":{"b":[{"c":"x"},7]}})", line);
  const Fields a = Fields(json, line).object("a");
  CHECK(a.entry("b", 0).text("c") == "x");
  check_fails(ExitCode::kUsage, "line 3: a.b[0].d is missing", [&] { a.entry("b", 0).get("d"); });
  check_fails(ExitCode::kUsage, "line 3: a.b[1] is not an object", [&] { a.entry("b", 1); });
  check_fails(ExitCode::kUnsupported, "line 3: no", [&] { a.fail("no", ExitCode::kUnsupported); });
}

TEST_CASE("a text that may have faults is a value or none") {
  CHECK(*try_parse_json("[1,2]") == Json::array({1, 2}));
  CHECK(try_parse_json("null")->is_null());
  for (const char* text : {"", "{", "[1,]", "{\"a\":1,\"a\":1}", "\"\xff\"", "1e999", "[1] 2"}) {
    CHECK_FALSE(try_parse_json(text));
  }
  CHECK(try_parse_json(std::string(64, '[') + std::string(64, ']')));
  CHECK_FALSE(try_parse_json(std::string(65, '[') + std::string(65, ']')));
  CHECK_FALSE(try_parse_json(std::string(200'000, '[')));
}

TEST_CASE("values that a filter drops are read past") {
  const auto keep = [](int depth, const std::string& key) { return depth != 2 || key != "big"; };
  const std::string text =
      R"({"a":{"big":[1,{"x":[2]}],"b":[3,{"big":4}]},"big":{"big":5,"c":null},"d":6})";
  CHECK(*try_parse_json(text, keep) ==
        Json::parse(R"({"a":{"b":[3,{"big":4}]},"big":{"c":null},"d":6})"));
  CHECK_FALSE(try_parse_json(R"({"a":{"big":1,"big":2}})", keep));  // still twice
  CHECK_FALSE(
      try_parse_json(R"({"a":{"big":)" + std::string(70, '[') + std::string(70, ']') + "}}", keep));
}

// Seconds for a reader that is linear; minutes for one that is not.
TEST_CASE("many values take time in proportion, and their number is limited") {
  const auto list = [](const std::string& value, size_t n) {
    std::string text = "[" + value;
    for (size_t i = 1; i < n; ++i) text += "," + value;
    return text + "]";
  };
  CHECK(try_parse_json(list("{}", 1'900'000))->size() == 1'900'000);
  CHECK(try_parse_json(list("{\"a\":{}}", 900'000))->size() == 900'000);
  CHECK(try_parse_json(list("1", kMaxJsonValues))->size() == kMaxJsonValues);
  CHECK_FALSE(try_parse_json(list("1", kMaxJsonValues + 1)));
  CHECK(try_parse_json(list("1", kMaxJsonValues + 1), nullptr, SIZE_MAX));
  check_fails(ExitCode::kModelFile, "f.json: JSON has more than 2000000 values",
              [&] { parse_json_object("{\"a\":" + list("[]", kMaxJsonValues) + "}", {"f.json"}); });
  // What is dropped does not count.
  const auto nothing = [](int, const std::string&) { return false; };
  CHECK(try_parse_json("{\"a\":" + list("[]", kMaxJsonValues) + "}", nothing)->empty());
}

}  // namespace
}  // namespace edgellm
