#include "apps/common/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "apps/common/signals.h"
#include "base/error.h"
#include "base/files.h"

namespace edgellm {
namespace {

// All that can be read from fd, or at most `limit` bytes. Nothing on an error, with errno set.
std::optional<std::string> read_all(int fd, size_t limit = SIZE_MAX) {
  std::string bytes;
  char buffer[1 << 16];
  while (bytes.size() < limit) {
    await_input(fd);
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

std::string read_stdin() {
  if (auto bytes = read_all(STDIN_FILENO)) return std::move(*bytes);
  throw Error(ExitCode::kUsage, std::string("cannot read standard input: ") + std::strerror(errno));
}

std::string read_input(const std::string& path) {
  if (path == "-") return read_stdin();
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail_to_read(path);
  auto bytes = read_all(file.get());
  if (!bytes) fail_to_read(path);
  return std::move(*bytes);
}

std::string read_head(const std::string& path, size_t n_bytes) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail_to_read(path, ExitCode::kModelFile);
  auto bytes = read_all(file.get(), n_bytes);
  if (!bytes) fail_to_read(path, ExitCode::kModelFile);
  return std::move(*bytes);
}

}  // namespace edgellm
