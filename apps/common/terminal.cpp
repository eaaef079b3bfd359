#include "apps/common/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "apps/common/signals.h"
#include "base/error.h"
#include "base/log.h"

namespace edgellm {
namespace {

// Work shorter than this draws no line: a flash of text helps nobody.
constexpr auto kFirstDraw = std::chrono::milliseconds(300);
// Ten times a second: faster is only work for the terminal.
constexpr auto kDrawInterval = std::chrono::milliseconds(100);
constexpr size_t kBarColumns = 24;

size_t terminal_columns(int fd) {
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// "[######..................]  25% "
std::string bar(uint64_t done, uint64_t total) {
  const double fraction = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto filled = static_cast<size_t>(fraction * static_cast<double>(kBarColumns));
  std::string percent = std::to_string(static_cast<int>(fraction * 100)) + "%";
  percent.insert(0, 4 - std::min<size_t>(4, percent.size()), ' ');
  return "[" + std::string(filled, '#') + std::string(kBarColumns - filled, '.') + "] " + percent +
         " ";
}

}  // namespace

void occupy_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // The wrong direction on purpose: the stream stays unusable. open() takes the lowest free
    // descriptor, which is this one.
    if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

bool is_terminal(int fd) { return isatty(fd) == 1; }

size_t help_columns() { return std::clamp<size_t>(terminal_columns(STDOUT_FILENO), 50, 100); }

bool write_stdout(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EPIPE) {
      return false;
    } else if (errno != EINTR) {
      throw Error(ExitCode::kRuntime,
                  std::string("cannot write to standard output: ") + std::strerror(errno));
    }
  }
  return true;
}

std::string json_line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void print_json(const nlohmann::ordered_json& json) { write_stdout(json_line(json)); }

void print_note(std::string_view message) { log(LogLevel::kInfo, message); }

void print_warning(std::string_view message) { log(LogLevel::kWarn, message); }

void print_error(std::string_view message) { log_failure(message); }

ProgressLine::ProgressLine()
    : enabled_(is_terminal(STDERR_FILENO) && !log_enabled(LogLevel::kDebug)),
      next_draw_(Clock::now() + kFirstDraw) {}

ProgressLine::~ProgressLine() {
  if (drawn_columns_ > 0) {
    std::fprintf(stderr, "\r%*s\r", static_cast<int>(drawn_columns_), "");
  }
}

Progress ProgressLine::callback() {
  return [this](std::string_view what, uint64_t done, uint64_t total) {
    throw_if_interrupted();
    if (total > 0) update(what, done, total);
  };
}

void ProgressLine::update(std::string_view what, uint64_t done, uint64_t total) {
  if (!enabled_) return;
  const auto now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kDrawInterval;

  std::string line = (total > 0 ? bar(done, total) : "") + std::string(what);

  // One column short of the width: a full line would wrap, and \r would not come back to its start.
  line.resize(std::min(line.size(), terminal_columns(STDERR_FILENO) - 1));
  const size_t columns = line.size();
  if (columns < drawn_columns_) line.append(drawn_columns_ - columns, ' ');
  std::fprintf(stderr, "\r%s", line.c_str());
  drawn_columns_ = columns;
}

}  // namespace edgellm
