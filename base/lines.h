// Lines cut out of bytes, one at a time and in memory that does not grow with their number.
//
// LineSplitter cuts bytes that somebody else delivers. LineReader reads a descriptor itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"

namespace edgellm {

struct Line {
  std::string text;         // without its newline, or CR and newline
  uint64_t offset = 0;      // of its first byte
  uint64_t bytes = 0;       // with its newline
  bool has_newline = true;  // only the last may lack it
  bool is_cut = false;      // it was longer than the limit
};

class LineSplitter {
 public:
  // Longer lines are cut to the limit, so that bytes without newlines cost no more memory.
  explicit LineSplitter(size_t max_line_bytes) : max_line_bytes_(max_line_bytes) {}

  void push(std::string_view bytes);

  // The next line that has its newline. False where there is none yet.
  bool next(Line& line);

  // After the last push: the line without a newline at the end. False where there is none.
  bool last(Line& line);

  // Pushes, and hands out every line that is whole. False where `on_line` wants no more, or where a
  // line is longer than the limit (is_too_long()).
  bool push(std::string_view bytes, const std::function<bool(std::string_view text)>& on_line);

  // What was pushed and not handed out: after a push() that returned true, the bytes behind the
  // last newline. Valid until the next call.
  std::string_view rest() const { return std::string_view(buffer_).substr(begin_); }

  // A line that was handed out, or the rest, is longer than the limit.
  bool is_too_long() const { return is_too_long_; }

 private:
  void take(size_t end, bool has_newline, Line& line);

  size_t max_line_bytes_;
  std::string buffer_;
  size_t begin_ = 0;      // of the lines that were not handed out
  size_t scanned_ = 0;    // bytes from begin_ on that are known to hold no newline
  uint64_t dropped_ = 0;  // bytes of the line at begin_ that were beyond the limit
  uint64_t offset_ = 0;   // of the line at begin_
  bool is_too_long_ = false;
};

class LineReader {
 public:
  static constexpr size_t kMaxLineBytes = size_t{64} << 20;

  // Returns when `fd` can be read (its end counts), or at once where `may_wait` is false. May throw
  // to end the reading, for example after a signal.
  using Wait = std::function<void(int fd, bool may_wait)>;

  struct Options {
    ExitCode blame = ExitCode::kUsage;  // of the Error where reading fails
    size_t max_line_bytes = kMaxLineBytes;
    uint64_t max_bytes = UINT64_MAX;  // the end is here, if not before
    // Reads from where the descriptor stands and moves it. Otherwise a file that can be read at any
    // place is read from its first byte, wherever its descriptor stands.
    bool from_here = false;
    Wait wait = {};  // before each read of what is not such a file; empty: read() waits
  };

  enum class Status {
    kLine,
    kNotYet,  // no whole line at present
    kEnd,
  };

  // `fd` stays the caller's. `name` is how messages call it.
  LineReader(int fd, std::string name, Options options);

  // Where `may_wait` is false: kNotYet instead of waiting. Throws Error where reading fails, and
  // what Options::wait throws.
  Status next(Line& line, bool may_wait = true);

  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t xxh3() const { return hasher_.digest(); }  // of the bytes read up to now

 private:
  bool fill(bool may_wait);  // false: nothing can be read at present

  int fd_;
  std::string name_;
  Options options_;
  bool is_seekable_;
  bool at_end_ = false;
  std::string block_;  // what one read delivers
  LineSplitter lines_;
  uint64_t bytes_read_ = 0;
  Hasher hasher_;
};

// Nothing but spaces and tabs.
bool is_blank_line(std::string_view text);

}  // namespace edgellm
