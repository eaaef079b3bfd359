// One process at a time: a lock on a file, which ends with its holder however that ends.
#pragma once

#include <functional>
#include <string>

#include "base/files.h"

namespace edgellm {

class FileLock {
 public:
  // Makes the file where there is none. Waits while another process holds it, after calling
  // `on_wait` once. Throws Interrupted after a signal, Error (kRuntime) where the file cannot be
  // made. A file system that knows no locks gives one at once: what is locked here must also be
  // written under a temporary name and renamed.
  FileLock(const std::string& path, const std::function<void()>& on_wait);

 private:
  FileDescriptor file_;
};

}  // namespace edgellm
