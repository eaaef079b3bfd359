// The lines of a file or a stream, one at a time and in memory that does not grow with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/hash.h"

namespace edgellm {

class LineReader {
 public:
  // Longer lines are cut to this, so that a file without newlines costs no more.
  static constexpr size_t kMaxLineBytes = size_t{64} << 20;

  struct Line {
    std::string text;         // without its newline, or CR and newline
    uint64_t offset = 0;      // of its first byte
    uint64_t bytes = 0;       // with its newline
    bool has_newline = true;  // only the last may lack it
    bool is_cut = false;      // it was longer than kMaxLineBytes
  };

  enum class Status {
    kLine,
    kNotYet,  // a pipe that holds no whole line at present
    kEnd,
  };

  // `fd` stays the caller's; `name` is how messages call it. Of a file that can be read at any
  // place, bytes [0, max_bytes) are read, wherever the descriptor stands.
  LineReader(int fd, std::string name, uint64_t max_bytes = UINT64_MAX);

  // Where `may_wait` is false, kNotYet instead of waiting for a pipe. Throws Error (kUsage) where
  // reading fails, Interrupted when a signal ends the wait.
  Status next(Line& line, bool may_wait);

  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t xxh3() const { return hasher_.digest(); }  // of the bytes read up to now

 private:
  bool fill(bool may_wait);  // false: nothing can be read at present

  int fd_;
  std::string name_;
  uint64_t max_bytes_;
  bool is_seekable_;
  bool at_end_ = false;
  std::string buffer_;
  size_t begin_ = 0;      // of what next() has not given yet
  size_t scanned_ = 0;    // behind begin_: no newline in so many bytes
  uint64_t dropped_ = 0;  // bytes of a line that is too long
  uint64_t bytes_read_ = 0;
  uint64_t offset_ = 0;  // of the line that begins at begin_
  model_io::Hasher hasher_;
};

// Nothing but blanks.
bool is_blank_line(const std::string& text);

}  // namespace edgellm
