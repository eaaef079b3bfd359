#include "engine/cpu/lazy_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace edgellm {

LazyMemory::LazyMemory(size_t bytes, const std::string& purpose, const std::string& remedy)
    : bytes_(std::max<size_t>(bytes, 1)) {
  data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
               -1, 0);
  if (data_ == MAP_FAILED) {
    throw Error(ExitCode::kRuntime, "no memory for " + purpose + " of " +
                                        std::to_string(bytes >> 20) + " MiB (" +
                                        std::strerror(errno) + "); " + remedy);
  }
}

LazyMemory::~LazyMemory() { munmap(data_, bytes_); }

void LazyMemory::prefer_huge_pages() const {
#ifdef MADV_HUGEPAGE
  madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
}

}  // namespace edgellm
