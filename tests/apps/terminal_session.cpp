#include "tests/apps/terminal_session.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>

namespace edgellm::test {

TerminalSession::TerminalSession(const std::vector<std::string>& args) {
  std::vector<std::string> words = {EDGELLM_PROGRAM};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  winsize size = {.ws_row = 24, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
  pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
  if (pid_ == 0) {
    setenv("TERM", "xterm", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    execv(EDGELLM_PROGRAM, argv.data());
    _exit(127);
  }
  REQUIRE(pid_ > 0);
}

TerminalSession::~TerminalSession() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(terminal_);
}

void TerminalSession::type(const std::string& keys) {
  REQUIRE(write(terminal_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
}

bool TerminalSession::read_more() {
  constexpr int kTimeoutMs = 60'000;
  pollfd waiting = {.fd = terminal_, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, kTimeoutMs) <= 0) return false;
  std::array<char, 4096> bytes;
  const ssize_t n = read(terminal_, bytes.data(), bytes.size());
  if (n > 0) pending_.append(bytes.data(), static_cast<size_t>(n));
  return n > 0;
}

std::string TerminalSession::read_until(const std::string& text) {
  for (;;) {
    const size_t found = pending_.find(text);
    if (found != std::string::npos) {
      const std::string result = pending_.substr(0, found + text.size());
      pending_.erase(0, result.size());
      return result;
    }
    if (!read_more()) FAIL("never came: " << text << "\nso far: " << pending_);
  }
}

int TerminalSession::wait() {
  while (read_more()) {
  }
  int status = 0;
  REQUIRE(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace edgellm::test
