#include "apps/common/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "apps/common/signals.h"
#include "base/error.h"

namespace edgellm {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;

bool has_input(int fd) {
  pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, 0) > 0;
}

}  // namespace

LineReader::LineReader(int fd, std::string name, uint64_t max_bytes)
    : fd_(fd),
      name_(std::move(name)),
      max_bytes_(max_bytes),
      is_seekable_(lseek(fd, 0, SEEK_CUR) >= 0) {}

bool LineReader::fill(bool may_wait) {
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  if (buffer_.size() > kMaxLineBytes) {
    dropped_ += buffer_.size() - kMaxLineBytes;
    buffer_.resize(kMaxLineBytes);
    scanned_ = kMaxLineBytes;
  }
  const auto limit = static_cast<size_t>(std::min<uint64_t>(kReadBytes, max_bytes_ - bytes_read_));
  const size_t old_size = buffer_.size();
  ssize_t n = 0;
  while (true) {
    if (!is_seekable_) {
      if (may_wait) wait_for_input(fd_);
      throw_if_interrupted();
      if (!has_input(fd_)) return false;
    }
    buffer_.resize(old_size + limit);
    n = is_seekable_ ? pread(fd_, buffer_.data() + old_size, limit, static_cast<off_t>(bytes_read_))
                     : read(fd_, buffer_.data() + old_size, limit);
    buffer_.resize(old_size + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n >= 0 || errno != EINTR) break;
  }
  if (n < 0) throw Error(ExitCode::kUsage, "cannot read " + name_ + ": " + std::strerror(errno));
  at_end_ = n == 0;
  bytes_read_ += static_cast<uint64_t>(n);
  hasher_.update(buffer_.data() + old_size, static_cast<size_t>(n));
  return true;
}

LineReader::Status LineReader::next(Line& line, bool may_wait) {
  size_t newline = std::string::npos;
  while (true) {
    newline = buffer_.find('\n', begin_ + scanned_);
    if (newline != std::string::npos || at_end_) break;
    scanned_ = buffer_.size() - begin_;
    if (!fill(may_wait)) return Status::kNotYet;
  }
  const bool has_newline = newline != std::string::npos;
  const size_t end = has_newline ? newline : buffer_.size();
  const uint64_t bytes = end - begin_ + (has_newline ? 1 : 0) + dropped_;
  if (bytes == 0) return Status::kEnd;
  line.text.assign(buffer_, begin_, end - begin_);
  line.is_cut = dropped_ > 0 || line.text.size() > kMaxLineBytes;
  if (line.is_cut) line.text.resize(kMaxLineBytes);
  if (line.text.ends_with('\r')) line.text.pop_back();
  line.offset = offset_;
  line.bytes = bytes;
  line.has_newline = has_newline;
  offset_ += bytes;
  begin_ = end + (has_newline ? 1 : 0);
  scanned_ = 0;
  dropped_ = 0;
  return Status::kLine;
}

bool is_blank_line(const std::string& text) {
  return text.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace edgellm
