#include "apps/common/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "apps/common/signals.h"
#include "base/error.h"
#include "base/file_io.h"

namespace edgellm {
namespace {

// Closes a descriptor at the end of a scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

// All that can be read from fd, or at most `limit` bytes. Nothing on an error, with errno set.
std::optional<std::string> read_all(int fd, size_t limit = SIZE_MAX) {
  std::string bytes;
  char buffer[1 << 16];
  while (bytes.size() < limit) {
    wait_for_input(fd);
    throw_if_interrupted();
    const ssize_t n = read(fd, buffer, std::min(sizeof buffer, limit - bytes.size()));
    if (n == 0) break;
    if (n > 0) {
      bytes.append(buffer, static_cast<size_t>(n));
    } else if (errno != EINTR) {
      return std::nullopt;
    }
  }
  return bytes;
}

[[noreturn]] void fail_to_read(const std::string& path, ExitCode code = ExitCode::kUsage) {
  throw Error(code, "cannot read " + path + ": " + std::strerror(errno));
}

}  // namespace

void fail_to_write(const std::string& path, int error) {
  throw Error(ExitCode::kRuntime, "cannot write " + path + ": " + std::strerror(error));
}

bool is_device_or_pipe(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
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

std::string read_stdin() {
  if (auto bytes = read_all(STDIN_FILENO)) return std::move(*bytes);
  throw Error(ExitCode::kUsage, std::string("cannot read standard input: ") + std::strerror(errno));
}

std::string read_input(const std::string& path) {
  if (path == "-") return read_stdin();
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail_to_read(path);
  auto bytes = read_all(file.fd);
  if (!bytes) fail_to_read(path);
  return std::move(*bytes);
}

std::string read_head(const std::string& path, size_t n_bytes) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail_to_read(path, ExitCode::kModelFile);
  auto bytes = read_all(file.fd, n_bytes);
  if (!bytes) fail_to_read(path, ExitCode::kModelFile);
  return std::move(*bytes);
}

void require_writable(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      throw Error(ExitCode::kRuntime,
                  "cannot write " + path + ": it is a folder; name a file in it");
    }
    if (!S_ISREG(status.st_mode)) {
      throw Error(ExitCode::kRuntime, "cannot write " + path + ": it is not a regular file");
    }
  }
  const std::string folder = model_io::folder_of(path);
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw Error(ExitCode::kRuntime, "cannot write " + path + ": there is no folder " + folder);
  }
  if (access(folder.c_str(), W_OK) != 0) fail_to_write(path, errno);
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
  if (is_device_or_pipe(path)) {
    fd_ = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    require_writable(path);
    temporary_ = path + ".tmp" + std::to_string(getpid());
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  }
  if (fd_ < 0) {
    temporary_.clear();
    fail(errno);
  }
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void OutputFile::fail(int error) const { fail_to_write(path_, error); }

void OutputFile::write(const void* data, size_t n_bytes) {
  const int error = write_all(fd_, {static_cast<const char*>(data), n_bytes});
  if (error != 0) fail(error);
}

void OutputFile::commit() {
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0) fail(errno);
  if (temporary_.empty()) return;
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  temporary_.clear();
}

void write_file(const std::string& path, std::string_view bytes) {
  OutputFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace edgellm
