// Levels and the sink. What the program makes of them is in tests/apps/log_test.cpp.
#include "base/log.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace edgellm::test {
namespace {

TEST_CASE("levels have names") {
  for (size_t i = 0; i < kLogLevelNames.size(); ++i) {
    CHECK(parse_log_level(kLogLevelNames[i]) == static_cast<LogLevel>(i));
  }
  CHECK(parse_log_level("trace") == LogLevel::kTrace);
  CHECK(parse_log_level("off") == LogLevel::kOff);
  CHECK(parse_log_level("") == std::nullopt);
  CHECK(parse_log_level("Debug") == std::nullopt);
  CHECK(parse_log_level("debug ") == std::nullopt);
  CHECK(parse_log_level("warning") == std::nullopt);
}

std::vector<std::string> g_messages;

TEST_CASE("without a sink nothing is written, with one what the level lets through") {
  log(LogLevel::kError, "nobody listens");
  log_failure("nobody listens");
  set_log_level(LogLevel::kTrace);
  CHECK_FALSE(log_enabled(LogLevel::kError));

  g_messages.clear();
  set_log_level(LogLevel::kWarn);
  set_log_sink([](LogLevel level, std::string_view message) {
    g_messages.push_back(std::to_string(static_cast<int>(level)) + std::string(message));
  });
  CHECK_FALSE(log_enabled(LogLevel::kInfo));
  CHECK(log_enabled(LogLevel::kWarn));
  log(LogLevel::kInfo, "a");
  log(LogLevel::kWarn, "b");
  log(LogLevel::kError, "c");
  set_log_level(LogLevel::kOff);
  log(LogLevel::kError, "d");
  log_failure("e");
  CHECK(g_messages == std::vector<std::string>{"3b", "4c", "4e"});
  set_log_sink(nullptr);
  set_log_level(LogLevel::kInfo);
}

}  // namespace
}  // namespace edgellm::test
