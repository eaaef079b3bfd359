// What one thread sets and another waits for, as a descriptor that poll() can wait for beside a
// socket.
#pragma once

#include "base/files.h"

namespace edgellm::serve {

class Event {
 public:
  // Throws Error (kRuntime) where the process has no descriptor left.
  Event();

  // Can be read after set(), until clear().
  int fd() const { return fd_.get(); }
  void set() const;
  void clear() const;

 private:
  FileDescriptor fd_;
};

}  // namespace edgellm::serve
