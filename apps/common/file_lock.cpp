#include "apps/common/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "apps/common/signals.h"
#include "base/output_file.h"

namespace edgellm {

FileLock::FileLock(const std::string& path, const std::function<void()>& on_wait)
    : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  // Often enough for a person, and no load.
  constexpr std::chrono::milliseconds kPoll{50};
  if (file_.get() < 0) fail_to_write(path, errno);
  bool has_waited = false;
  while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;
    if (!has_waited) on_wait();
    has_waited = true;
    throw_if_interrupted();
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace edgellm
