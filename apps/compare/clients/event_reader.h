// Server-sent events (HTML standard, section 9.2) out of the lines of a stream.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace edgellm::peers {

// A line, an event or a whole text longer than this is nobody's answer.
inline constexpr size_t kMaxAnswerBytes = size_t{16} << 20;

// The lines "data: ..." of an event, joined by newlines. An empty line ends the event. Comments and
// other fields are skipped.
class EventReader {
 public:
  // One line without its end; true when it completed an event, whose data() then holds.
  bool push(std::string_view line);
  const std::string& data() const { return data_; }

  // The event has more than kMaxAnswerBytes of data. What is beyond them was dropped.
  bool is_too_long() const { return is_too_long_; }

 private:
  std::string data_;
  bool is_too_long_ = false;
  bool complete_ = true;  // the next line begins a new event
};

}  // namespace edgellm::peers
