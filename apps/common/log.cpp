#include "apps/common/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace edgellm {
namespace {

// Two patterns: messages as people read them, and lines for those who look for a fault.
class Formatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    (message.level < spdlog::level::info ? line_ : note_).format(message, out);
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<Formatter>();
  }

 private:
  spdlog::pattern_formatter note_{"edgellm: %v", spdlog::pattern_time_type::local, "\n"};
  spdlog::pattern_formatter line_{"%Y-%m-%d %H:%M:%S.%e [%l] %v", spdlog::pattern_time_type::local,
                                  "\n"};
};

// Made without spdlog's registry, which would make a default logger as well. The sink writes to
// stdio's stderr, so that its lines stay in order with others' writes.
spdlog::logger& logger() {
  static spdlog::logger stderr_logger = [] {
    spdlog::logger made("edgellm", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_formatter(std::make_unique<Formatter>());
    made.set_level(spdlog::level::trace);  // base/log.h has decided
    return made;
  }();
  return stderr_logger;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::err;
}

void write_message(LogLevel level, std::string_view message) {
  const std::string text = printable_path(message);
  logger().log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace

void install_log_sink() {
  set_log_sink(write_message);
  const char* level = std::getenv("EDGELLM_LOG");
  if (level != nullptr && *level != '\0') set_log_level(level, "EDGELLM_LOG");
}

std::vector<std::string> log_level_names() {
  return {kLogLevelNames.begin(), kLogLevelNames.end()};
}

void set_log_level(std::string_view name, const std::string& source) {
  const std::optional<LogLevel> level = parse_log_level(name);
  if (!level) {
    throw Error(ExitCode::kUsage, source + ": '" + std::string(name) + "' is not one of " +
                                      join(log_level_names(), ", "));
  }
  set_log_level(*level);
}

}  // namespace edgellm
