#include "base/log.h"

#include <algorithm>

namespace edgellm {
namespace {

std::atomic<LogSink> g_sink = nullptr;
std::atomic<LogLevel> g_level = LogLevel::kInfo;

void update_lowest_written() {
  log_detail::lowest_written = g_sink != nullptr ? g_level.load() : LogLevel::kOff;
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view name) {
  const auto it = std::find(kLogLevelNames.begin(), kLogLevelNames.end(), name);
  if (it == kLogLevelNames.end()) return std::nullopt;
  return static_cast<LogLevel>(it - kLogLevelNames.begin());
}

void set_log_sink(LogSink sink) {
  g_sink = sink;
  update_lowest_written();
}

void set_log_level(LogLevel lowest) {
  g_level = lowest;
  update_lowest_written();
}

void log(LogLevel level, std::string_view message) {
  if (!log_enabled(level)) return;
  if (const LogSink sink = g_sink) sink(level, message);
}

void log_failure(std::string_view message) {
  if (const LogSink sink = g_sink) sink(LogLevel::kError, message);
}

}  // namespace edgellm
