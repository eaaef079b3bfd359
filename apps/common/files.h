// Reading what the user names and making sure, before the work begins, that what is asked for can
// be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace edgellm {

// All bytes of a file or, for "-", of standard input. Throws Error (kUsage).
std::string read_input(const std::string& path);

// All bytes of standard input. Throws Interrupted when a signal ends the wait.
std::string read_stdin();

// The first bytes of a file, for telling formats of models apart; fewer where the file is short.
// Throws Error (kModelFile).
std::string read_head(const std::string& path, size_t n_bytes);

// Throws Error (kRuntime) where a file of this name could not be made or replaced.
void require_writable(const std::string& path);

// A device or a pipe: written directly, and nothing to go on from.
bool is_device_or_pipe(const std::string& path);

// Error (kRuntime) for an errno value of a write.
[[noreturn]] void fail_to_write(const std::string& path, int error);

// All of the bytes, however many calls it takes. 0, or the errno of the call that failed.
int write_all(int fd, std::string_view bytes);

// A file that gets its name when it is whole: commit() renames it into place; without it nothing is
// left behind and an older file of that name stays. A device or pipe is written directly.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);  // throws Error (kRuntime), as do write and commit
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t n_bytes);
  void commit();

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_;
  std::string temporary_;  // empty where path_ is written directly
  int fd_ = -1;
};

// An OutputFile of these bytes.
void write_file(const std::string& path, std::string_view bytes);

}  // namespace edgellm
