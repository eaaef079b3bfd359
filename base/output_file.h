// Writing files that are whole or not there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/files.h"

namespace edgellm {

// The name of a target that is standard output.
inline constexpr std::string_view kStandardOutput = "-";

// A file that gets its name when it is whole. It is written under a temporary name beside its
// target. commit() syncs it to the disk and renames it. Without commit() nothing is left behind,
// and an older file of that name stays as it was.
//
// Standard output, a device or a pipe is written directly, from front to back: renaming over
// /dev/null would replace it for everybody.
class OutputFile {
 public:
  enum class Temporary : uint8_t {
    kUnique,  // PATH.tmpPID.N: several writers do not meet
    kFixed,   // PATH.tmp: replaces what a killed process left. For one writer at a time.
  };

  // How an Error reads: "CANNOT_WRITE: No space left on device".
  struct Blame {
    std::string cannot_write;
    std::string cannot_rename;
  };

  OutputFile(const std::string& path, Temporary temporary, Blame blame);

  // "cannot write PATH: ..."
  OutputFile(const std::string& path, Temporary temporary);

  // After require_writable().
  explicit OutputFile(const std::string& path);

  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  int fd() const { return fd_.get(); }
  // Empty where the target is written directly.
  const std::string& temporary_path() const { return temporary_path_; }

  // At the end, or from byte `offset`.
  void write(const void* data, size_t bytes);
  void write_at(uint64_t offset, const void* data, size_t bytes);

  // Returns the file's descriptor, still open.
  FileDescriptor commit();

 private:
  void open_temporary(Temporary temporary);
  [[noreturn]] void fail(const std::string& what, int error) const;

  std::string path_;
  Blame blame_;
  std::string temporary_path_;
  FileDescriptor fd_;
};

// An OutputFile of these bytes.
void write_file(const std::string& path, std::string_view bytes);

// Throws Error (kRuntime) where a file of this name could not be made or replaced.
void require_writable(const std::string& path);

bool is_device_or_pipe(const std::string& path);

// Throws Error (kRuntime) for an errno value: "cannot write PATH: ...".
[[noreturn]] void fail_to_write(const std::string& path, int error);

// All of the bytes, in as many calls as it takes. 0, or the errno of the call that failed.
int write_all(int fd, std::string_view bytes);

}  // namespace edgellm
