#include "base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace edgellm {

namespace {

const std::string& checked(const std::string& path) {
  if (!is_device_or_pipe(path)) require_writable(path);
  return path;
}

}  // namespace

OutputFile::OutputFile(const std::string& path, Temporary temporary, Blame blame)
    : path_(path), blame_(std::move(blame)) {
  if (path == kStandardOutput) {
    fd_ = FileDescriptor(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
    if (fd_.get() < 0) fail(blame_.cannot_write, errno);
  } else if (is_device_or_pipe(path)) {
    fd_ = FileDescriptor(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (fd_.get() < 0) fail(blame_.cannot_write, errno);
  } else {
    open_temporary(temporary);
  }
}

OutputFile::OutputFile(const std::string& path) : OutputFile(checked(path), Temporary::kUnique) {}

OutputFile::OutputFile(const std::string& path, Temporary temporary)
    : OutputFile(path, temporary, {"cannot write " + path, "cannot write " + path}) {}

OutputFile::~OutputFile() {
  if (!temporary_path_.empty()) unlink(temporary_path_.c_str());
}

void OutputFile::open_temporary(Temporary temporary) {
  const bool is_fixed = temporary == Temporary::kFixed;
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | (is_fixed ? O_TRUNC : O_EXCL);
  const std::string unique = path_ + ".tmp" + std::to_string(getpid()) + ".";
  // Another thread of this process may be writing to the same target.
  constexpr int kAttempts = 100;
  for (int i = 0; i < kAttempts; ++i) {
    const std::string name = is_fixed ? path_ + ".tmp" : unique + std::to_string(i);
    fd_ = FileDescriptor(open(name.c_str(), flags, 0666));
    if (fd_.get() >= 0) {
      temporary_path_ = name;
      return;
    }
    if (errno != EEXIST) fail(blame_.cannot_write, errno);
  }
  throw Error(ExitCode::kRuntime, blame_.cannot_write + ": too many temporary files beside it");
}

void OutputFile::fail(const std::string& what, int error) const {
  throw Error(ExitCode::kRuntime, what + ": " + std::strerror(error));
}

void OutputFile::write(const void* data, size_t bytes) {
  const int error = write_all(fd_.get(), {static_cast<const char*>(data), bytes});
  if (error != 0) fail(blame_.cannot_write, error);
}

void OutputFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = pwrite(fd_.get(), from, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(blame_.cannot_write, errno);
    from += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

FileDescriptor OutputFile::commit() {
  if (!temporary_path_.empty()) {
    if (fsync(fd_.get()) != 0) fail(blame_.cannot_write, errno);
    if (rename(temporary_path_.c_str(), path_.c_str()) != 0) fail(blame_.cannot_rename, errno);
    temporary_path_.clear();
    sync_folder(folder_of(path_));
  }
  return std::move(fd_);
}

void write_file(const std::string& path, std::string_view bytes) {
  OutputFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void require_writable(const std::string& path) {
  if (path == kStandardOutput) return;
  const auto fail = [&](const std::string& why) {
    throw Error(ExitCode::kRuntime, "cannot write " + path + ": " + why);
  };
  struct stat status = {};
  if (stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) fail("it is a folder; name a file in it");
    if (!S_ISREG(status.st_mode)) fail("it is not a regular file");
  }
  const std::string folder = folder_of(path);
  if (!is_folder(folder)) fail("there is no folder " + folder);
  if (access(folder.c_str(), W_OK) != 0) fail_to_write(path, errno);
}

bool is_device_or_pipe(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

void fail_to_write(const std::string& path, int error) {
  throw Error(ExitCode::kRuntime, "cannot write " + path + ": " + std::strerror(error));
}

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace edgellm
