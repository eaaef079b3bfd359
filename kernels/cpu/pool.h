// The CPU backend's worker threads and scratch memory.
//
// for_each() splits a range of items over all threads, the caller included, and returns when every
// item is done. One caller at a time. Which thread runs which item is not defined, so an item must
// write only what belongs to it; results then cannot depend on the number of threads.
//
// Workers spin for a moment after each job and then sleep: the next op of a layer usually comes
// within microseconds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace edgellm::cpu {

struct Primitives;

class Pool {
 public:
  // `threads` >= 1, the caller counted. `isa` is the path that the ops take. Throws Error
  // (kRuntime) where the system gives no more threads.
  Pool(int threads, const Primitives& isa);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const Primitives& isa() const { return isa_; }
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, thread) for disjoint ranges that cover [0, items), at most `grain` items
  // each; thread < threads(). Items are handed out as threads come free. An exception of a body is
  // rethrown here once all threads are done.
  template <class Body>
  void for_each(int items, int grain, Body&& body) {
    run(
        items, grain,
        [](void* context, int begin, int end, int thread) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(begin, end, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Scratch memory of at least `bytes`, 64-aligned, kept and grown. Valid until the next call with
  // the same arguments that asks for more. `shared` is for the caller, `of_thread` for a body.
  std::byte* shared_scratch(size_t bytes) { return shared_.get(bytes); }
  std::byte* thread_scratch(int thread, size_t bytes) {
    return per_thread_[static_cast<size_t>(thread)].get(bytes);
  }
  size_t scratch_bytes() const;

 private:
  using Invoke = void (*)(void* context, int begin, int end, int thread);

  class Scratch {
   public:
    std::byte* get(size_t bytes);
    size_t bytes() const { return bytes_; }

   private:
    struct Free {
      void operator()(std::byte* p) const;
    };
    std::unique_ptr<std::byte, Free> data_;
    size_t bytes_ = 0;
  };

  void run(int items, int grain, Invoke invoke, void* context);
  void stop();
  void work(int thread);
  bool enter();
  void worker_main(int thread);

  const Primitives& isa_;
  std::vector<std::thread> workers_;
  Scratch shared_;
  std::vector<Scratch> per_thread_;

  // The job. The caller writes it while the gate is closed and no worker is inside, then opens the
  // gate (release). A worker reads it only after it has entered through the open gate (acquire),
  // and leaves (release) when there are no more items. The caller closes the gate when it has run
  // out of items itself and waits until it is empty (acquire): it never waits for a worker that is
  // asleep or was not scheduled in time.
  Invoke invoke_ = nullptr;
  void* context_ = nullptr;
  int items_ = 0;
  int grain_ = 1;
  alignas(64) std::atomic<int> next_{0};
  // Job number in the upper half, so that no value of the gate comes twice; kOpen; workers inside.
  alignas(64) std::atomic<uint64_t> gate_{0};
  static constexpr uint64_t kOpen = 1ull << 31;
  static constexpr uint64_t kInside = kOpen - 1;
  alignas(64) std::atomic<uint32_t> wake_{0};  // raised for each job; sleeping workers wait on it
  std::atomic<bool> stopping_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace edgellm::cpu
