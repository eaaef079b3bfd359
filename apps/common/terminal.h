// The three streams. stdout carries the answer and nothing else. Everything for people's eyes goes
// to stderr. The program writes no escape bytes, not even to a terminal: a progress line is redrawn
// with a carriage return and spaces. So there is nothing for NO_COLOR to switch off.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/progress.h"

namespace edgellm {

// Gives descriptors 0 to 2 a place to point to where the caller closed them, so that no file opened
// later becomes "standard output". Reading or writing them still fails, as it should.
void occupy_standard_streams();

bool is_terminal(int fd);

// Columns of help on stdout: the terminal's, but no more than can be read with ease; 80 elsewhere.
size_t help_columns();

// Writes at once, past any buffer. False when the reader of a pipe has closed it: the caller ends
// quietly. Throws Error when the bytes cannot be written.
bool write_stdout(std::string_view text);

// JSON in one line with its newline. Bytes that are not UTF-8 (a path may hold any) become U+FFFD.
std::string json_line(const nlohmann::ordered_json& json);

// The same on stdout, as write_stdout() does it.
void print_json(const nlohmann::ordered_json& json);

// A note: a message of the level info (log.h says how it is written).
void print_note(std::string_view message);

// A warning, of the level warn: something is not as it should be, and the command continues.
void print_warning(std::string_view message);

// The line that says why a command failed. The same form, written at every level.
void print_error(std::string_view message);

// A progress line on stderr while it lives. It is drawn where stderr is a terminal, unless lines of
// the level debug are written, which would break it. Drawn or not, its callback ends the work
// (Interrupted) after a signal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // The callback must not outlive this object.
  Progress callback();

  // Does not look at signals, for work that ends in good order by itself. No bar for a total of 0.
  void update(std::string_view what, uint64_t done, uint64_t total);
  bool is_drawn() const { return enabled_; }

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_;
  Clock::time_point next_draw_;
  size_t drawn_columns_ = 0;
};

}  // namespace edgellm
