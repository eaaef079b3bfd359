#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace edgellm {

void fail_file(const std::string& path, const std::string& predicate) {
  throw Error(ExitCode::kModelFile, printable_path(path) + " " + predicate);
}

void fail_in_file(const std::string& path, const std::string& sentence) {
  throw Error(ExitCode::kModelFile, printable_path(path) + ": " + sentence);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

InputFile::InputFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a FIFO without it would wait for a writer.
  fd_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd_.get() < 0) {
    if (errno == ENOENT) {
      if (path_exists(path)) fail_file(path, "is a link to a file that is not there");
      fail_in_file(path, "no such file");
    }
    fail_file(path, std::string("cannot be opened: ") + std::strerror(errno));
  }
  struct stat status = {};
  if (::fstat(fd_.get(), &status) != 0) {
    fail_file(path, std::string("cannot be examined: ") + std::strerror(errno));
  }
  if (S_ISDIR(status.st_mode)) fail_file(path, "is a folder, expected a file");
  if (!S_ISREG(status.st_mode)) fail_file(path, "is not a regular file");
  size_ = static_cast<uint64_t>(status.st_size);
  identity_ = {static_cast<uint64_t>(status.st_dev), static_cast<uint64_t>(status.st_ino)};
}

void InputFile::read(uint64_t offset, void* to, size_t bytes) const {
  auto* out = static_cast<char*>(to);
  while (bytes > 0) {
    // Linux moves at most 0x7ffff000 bytes in one call.
    const size_t step = std::min(bytes, size_t{1} << 30);
    const ssize_t got = ::pread(fd_.get(), out, step, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_file(path_, std::string("cannot be read: ") + std::strerror(errno));
    if (got == 0)
      fail_file(path_, "ends at byte " + std::to_string(offset) + ", more was expected");
    out += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

std::string read_text_file(const std::string& path, uint64_t max_bytes) {
  const InputFile file(path);
  if (file.size() > max_bytes) {
    fail_file(path, "is " + std::to_string(file.size()) + " bytes long, expected at most " +
                        std::to_string(max_bytes));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

std::string first_line(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

bool path_exists(const std::string& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0;
}

bool is_folder(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string folder_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void sync_folder(const std::string& folder) {
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) ::fsync(fd.get());
}

}  // namespace edgellm
