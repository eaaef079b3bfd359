// The real binary at a terminal of its own, as a person would sit at it: stdin, stdout and stderr
// are one pseudo-terminal, and Ctrl-C reaches the program as a signal.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace edgellm::test {

class TerminalSession {
 public:
  explicit TerminalSession(const std::vector<std::string>& args);
  ~TerminalSession();  // a program that still runs is killed
  TerminalSession(const TerminalSession&) = delete;
  TerminalSession& operator=(const TerminalSession&) = delete;

  void type(const std::string& keys);

  // Reads until `text` has come and returns all that came up to its end. The test fails after a
  // minute without it.
  std::string read_until(const std::string& text);

  int wait();  // the exit code, 128 + signal where one ended the process

 private:
  bool read_more();

  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string pending_;  // read, but not returned yet
};

}  // namespace edgellm::test
