#include "apps/common/line_log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "base/error.h"

namespace edgellm {
namespace {

spdlog::sink_ptr open_sink(const std::string& path) {
  if (path == "-") return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  } catch (const spdlog::spdlog_ex& error) {
    throw Error(ExitCode::kUsage, std::string("cannot write ") + path + ": " + error.what());
  }
}

}  // namespace

struct LineLog::Impl {
  spdlog::logger logger;
};

LineLog::LineLog(const std::string& path)
    : impl_(std::make_unique<Impl>(Impl{spdlog::logger("lines", open_sink(path))})) {
  impl_->logger.set_formatter(
      std::make_unique<spdlog::pattern_formatter>("%v", spdlog::pattern_time_type::utc, "\n"));
  impl_->logger.flush_on(spdlog::level::info);
}

LineLog::~LineLog() = default;

void LineLog::write(std::string_view line) {
  impl_->logger.log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace edgellm
