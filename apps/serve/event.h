// What one thread sets and another waits for, as a descriptor that poll() can wait for beside a
// socket.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

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

// Sets events in a thread of its own. To wake a thread costs microseconds, which an engine with
// many sequences would pay for each token.
class EventThread {
 public:
  EventThread();
  ~EventThread();  // sets what is left
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;

  // Of any thread.
  void set(std::shared_ptr<const Event> event);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<std::shared_ptr<const Event>> events_;
  bool is_waiting_ = false;  // the thread is, or is about to
  bool is_ending_ = false;

  std::thread thread_;  // the last: it uses the others
};

}  // namespace edgellm::serve
