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
  check_fails(ExitCode::kUsage, "line 3: is not a JSON object",
              [&] { parse_json_object("[1]", line); });
  check_fails(ExitCode::kUsage, "line 3: is not valid JSON (at byte 2)",
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
  CHECK_FALSE(try_parse_json(std::string(66, '[') + std::string(66, ']')));
}

}  // namespace
}  // namespace edgellm
