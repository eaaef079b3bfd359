// What the fuzz targets share. A target hands bytes that nobody vouches for to one of the readers:
// it may throw Error, and nothing else may happen. Any other exception, a crash, a hang or much
// memory is a finding.
//
// Every target is built twice: with libFuzzer (preset "fuzz"), and with replay_main.cpp, which runs
// the committed corpus, and what was found once, in every build's tests.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace edgellm::fuzz {

// Takes an input apart. Texts end with a zero byte, which none of the formats may hold: so a
// mutation makes a text longer without moving what the others are.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  char byte() {
    if (rest_.empty()) return '\0';
    const char first = rest_.front();
    rest_.remove_prefix(1);
    return first;
  }
  std::string_view text() {
    const size_t end = rest_.find('\0');
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    return text;
  }
  bool at_end() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// A file that exists in memory only, for readers that want a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 || write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      throw std::runtime_error("no file in memory");
    }
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// Runs a reader. Its complaint must be one line fit for a terminal.
template <class Action>
void may_refuse(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (message.empty()) throw std::logic_error("an Error without a message");
    if (message.find('\n') != std::string_view::npos) {
      throw std::logic_error("an Error of several lines");
    }
  }
}

}  // namespace edgellm::fuzz
