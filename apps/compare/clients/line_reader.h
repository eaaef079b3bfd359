// Streams of JSON cut out of whatever pieces the network delivers.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace edgellm::peers {

// Lines that end with \n or \r\n. Bytes after the last newline wait for the rest of their line.
class LineReader {
 public:
  // A line longer than this is nobody's answer.
  static constexpr size_t kMaxLineBytes = size_t{16} << 20;

  // `on_line` gets every line that `bytes` complete, without its end; false from it ends the
  // reading. False when it did, or when a line is too long.
  bool push(std::string_view bytes, const std::function<bool(std::string_view)>& on_line);

  const std::string& rest() const { return rest_; }  // a last line without an end
  bool too_long() const { return too_long_; }

 private:
  std::string rest_;
  bool too_long_ = false;
};

// Server-sent events (HTML standard, section 9.2): the lines "data: ..." of an event, joined by
// newlines; an empty line ends it. Comments and other fields are skipped.
class EventReader {
 public:
  // One line without its end; true when it completed an event, whose data() then holds.
  bool push(std::string_view line);
  const std::string& data() const { return data_; }

 private:
  std::string data_;
  bool complete_ = true;  // the next line begins a new event
};

}  // namespace edgellm::peers
