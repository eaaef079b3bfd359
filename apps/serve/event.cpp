#include "apps/serve/event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"

namespace edgellm::serve {

Event::Event() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_.get() < 0) {
    throw Error(ExitCode::kRuntime, std::string("no descriptor for a request: ") +
                                        std::strerror(errno) + "; raise the limit (ulimit -n)");
  }
}

// Fails only where the counter would overflow, and then it can be read.
void Event::set() const {
  const uint64_t one = 1;
  (void)!write(fd_.get(), &one, sizeof one);
}

void Event::clear() const {
  uint64_t count = 0;
  (void)!read(fd_.get(), &count, sizeof count);
}

}  // namespace edgellm::serve
