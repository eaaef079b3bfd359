#include "base/lines.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace edgellm {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;

bool has_input(int fd) {
  pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, 0) > 0;
}

}  // namespace

void LineSplitter::push(std::string_view bytes) {
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  const bool is_one_line = scanned_ == buffer_.size();
  if (is_one_line && buffer_.size() > max_line_bytes_) {
    dropped_ += buffer_.size() - max_line_bytes_;
    buffer_.resize(max_line_bytes_);
    scanned_ = max_line_bytes_;
  }
  buffer_ += bytes;
}

bool LineSplitter::next(Line& line) {
  const size_t newline = buffer_.find('\n', begin_ + scanned_);
  if (newline == std::string::npos) {
    scanned_ = buffer_.size() - begin_;
    is_too_long_ = is_too_long_ || scanned_ > max_line_bytes_;
    return false;
  }
  take(newline, /*has_newline=*/true, line);
  return true;
}

bool LineSplitter::last(Line& line) {
  if (next(line)) return true;
  if (begin_ == buffer_.size()) return false;
  take(buffer_.size(), /*has_newline=*/false, line);
  return true;
}

void LineSplitter::take(size_t end, bool has_newline, Line& line) {
  line.text.assign(buffer_, begin_, end - begin_);
  line.is_cut = dropped_ > 0 || line.text.size() > max_line_bytes_;
  is_too_long_ = is_too_long_ || line.is_cut;
  if (line.is_cut) line.text.resize(max_line_bytes_);
  if (line.text.ends_with('\r')) line.text.pop_back();
  line.offset = offset_;
  line.bytes = end - begin_ + (has_newline ? 1 : 0) + dropped_;
  line.has_newline = has_newline;
  offset_ += line.bytes;
  begin_ = end + (has_newline ? 1 : 0);
  scanned_ = 0;
  dropped_ = 0;
}

bool LineSplitter::push(std::string_view bytes,
                        const std::function<bool(std::string_view text)>& on_line) {
  push(bytes);
  Line line;
  while (next(line)) {
    if (line.is_cut || !on_line(line.text)) return false;
  }
  return !is_too_long_;
}

LineReader::LineReader(int fd, std::string name, Options options)
    : fd_(fd),
      name_(std::move(name)),
      options_(std::move(options)),
      is_seekable_(!options_.from_here && lseek(fd, 0, SEEK_CUR) >= 0),
      lines_(options_.max_line_bytes) {}

bool LineReader::fill(bool may_wait) {
  const uint64_t limit = std::min<uint64_t>(kReadBytes, options_.max_bytes - bytes_read_);
  block_.resize(static_cast<size_t>(limit));
  ssize_t n = 0;
  do {
    if (!is_seekable_) {
      if (options_.wait) options_.wait(fd_, may_wait);
      if ((options_.wait || !may_wait) && !has_input(fd_)) return false;
    }
    n = is_seekable_ ? pread(fd_, block_.data(), block_.size(), static_cast<off_t>(bytes_read_))
                     : read(fd_, block_.data(), block_.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) throw Error(options_.blame, "cannot read " + name_ + ": " + std::strerror(errno));
  const std::string_view bytes(block_.data(), static_cast<size_t>(n));
  at_end_ = bytes.empty();
  bytes_read_ += bytes.size();
  hasher_.update(bytes.data(), bytes.size());
  lines_.push(bytes);
  return true;
}

LineReader::Status LineReader::next(Line& line, bool may_wait) {
  while (!lines_.next(line)) {
    if (at_end_) return lines_.last(line) ? Status::kLine : Status::kEnd;
    if (!fill(may_wait) && !may_wait) return Status::kNotYet;
  }
  return Status::kLine;
}

bool is_blank_line(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace edgellm
