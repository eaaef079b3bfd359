// Zeroed memory that has physical pages only where it was written.
#pragma once

#include <cstddef>
#include <string>

namespace edgellm {

class LazyMemory {
 public:
  // `purpose` and `remedy` tell the user what could not be had and what to do about it. Throws
  // Error (kRuntime).
  LazyMemory(size_t bytes, const std::string& purpose, const std::string& remedy);
  ~LazyMemory();
  LazyMemory(const LazyMemory&) = delete;
  LazyMemory& operator=(const LazyMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }

  // Asks for pages of 2 MiB, if they can be had.
  void prefer_huge_pages() const;

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace edgellm
