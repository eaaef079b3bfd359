// Messages for people: notes, warnings, and lines for those who look for a fault.
//
// A folder says what happened by log(). The program installs the sink that writes it
// (apps/common/log.h). Without a sink nothing is written, so libedgellm.so stays silent.
//
// Every function here may be called from any thread, none of them from a signal handler.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <string_view>

namespace edgellm {

enum class LogLevel : int {
  kTrace,  // every small step: what would flood a terminal
  kDebug,  // choices and timings, a few lines a run
  kInfo,   // notes: what the user should know, and the default
  kWarn,
  kError,
  kOff,  // no message has this level
};

// The levels' names, in the order of the levels.
inline constexpr std::array<std::string_view, 6> kLogLevelNames = {"trace", "debug", "info",
                                                                   "warn",  "error", "off"};

// The level of such a name.
std::optional<LogLevel> parse_log_level(std::string_view name);

// Receives one message without a newline. Called by any thread, by several at a time.
using LogSink = void (*)(LogLevel level, std::string_view message);

// Messages of `lowest` and above go to the sink from now on. Before the first call: none.
void set_log_sink(LogSink sink);
void set_log_level(LogLevel lowest);

namespace log_detail {
// One word for both questions, so that a check costs one load: kOff while there is no sink.
inline std::atomic<LogLevel> lowest_written = LogLevel::kOff;
}  // namespace log_detail

// Whether a message of this level is written. Ask first where making the message costs something.
inline bool log_enabled(LogLevel level) {
  return level >= log_detail::lowest_written.load(std::memory_order_relaxed);
}

void log(LogLevel level, std::string_view message);

// Written at any level, off included: the line that says why a command failed.
void log_failure(std::string_view message);

}  // namespace edgellm
