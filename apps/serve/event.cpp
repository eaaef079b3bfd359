#include "apps/serve/event.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/linux.h"

namespace edgellm::serve {

Event::Event() : fd_(open_event()) {
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

EventThread::EventThread() : thread_([this] { work(); }) {}

EventThread::~EventThread() {
  {
    const std::lock_guard guard(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void EventThread::set(std::shared_ptr<const Event> event) {
  bool must_wake = false;
  {
    const std::lock_guard guard(mutex_);
    events_.push_back(std::move(event));
    must_wake = std::exchange(is_waiting_, false);
  }
  if (must_wake) changed_.notify_one();
}

void EventThread::work() {
  std::vector<std::shared_ptr<const Event>> events;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      is_waiting_ = events_.empty();
      changed_.wait(lock, [this] { return is_ending_ || !events_.empty(); });
      is_waiting_ = false;
      if (events_.empty()) return;
      std::swap(events, events_);
    }
    for (const auto& event : events) event->set();
    events.clear();
  }
}

}  // namespace edgellm::serve
