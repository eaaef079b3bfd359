// Files that are read with pread. Every fault becomes an Error (kModelFile) with the path in it.
// Only regular files are opened: a FIFO or a device could block or never end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace edgellm {

// Both throw Error (kModelFile). Of the file itself, with a verb first: "PATH is cut off".
[[noreturn]] void fail_file(const std::string& path, const std::string& predicate);
// Of something in it: "PATH: section 'x' is missing".
[[noreturn]] void fail_in_file(const std::string& path, const std::string& sentence);

// Owns a file descriptor; -1 is none.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  int release();

 private:
  int fd_;
};

// Which file a path leads to: two names of one file have the same identity.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};

class InputFile {
 public:
  explicit InputFile(const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  FileIdentity identity() const { return identity_; }
  int fd() const { return fd_.get(); }

  // Exactly these bytes; a file that ends before them is an error.
  void read(uint64_t offset, void* to, size_t bytes) const;

 private:
  std::string path_;
  FileDescriptor fd_;
  uint64_t size_ = 0;
  FileIdentity identity_;
};

// The whole of a file of at most max_bytes.
std::string read_text_file(const std::string& path, uint64_t max_bytes);

// Of a small file that the system writes, as in /proc and /sys; empty where there is none.
std::string first_line(const std::string& path);

// True of a link that leads nowhere as well: a download that is not complete must not pass for a
// model that has no such file.
bool path_exists(const std::string& path);
bool is_folder(const std::string& path);

std::string folder_of(const std::string& path);  // "." where the path names none

// So that a new name in it outlives a power cut. Where a file system cannot sync a folder the files
// themselves are safe, only their names may be late.
void sync_folder(const std::string& folder);

}  // namespace edgellm
