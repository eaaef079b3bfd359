// The CPU backend's worker threads and scratch memory.
//
// for_each() splits a range of items over all threads, the caller included, and returns when every
// item is done. One caller at a time. Which thread runs which item is not defined, so an item must
// write only what belongs to it; results then cannot depend on the number of threads.
//
// Every thread has a share of the items, the same one in every call with as many items: its part of
// the weights stays in its own cache. A thread that is done helps the others. So a core that is
// slow, or busy with other work, holds nobody up for longer than a chunk takes.
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
  // `threads` >= 1, the caller counted. `isa` is the path that the ops take. Thread i, but for the
  // caller, uses cores cpus_of_threads[i], or any where there are none. Throws Error (kRuntime)
  // where the system gives no more threads.
  Pool(int threads, const Primitives& isa, std::vector<std::vector<int>> cpus_of_threads = {});
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const Primitives& isa() const { return isa_; }
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, thread) for disjoint ranges that cover [0, items), at most `grain` items
  // each; thread < threads(). An exception of a body is rethrown here once all threads are done.
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

  // A job is `chunks` calls of its body. Two are kept, by the parity of their numbers.
  //
  // A worker that is late may read one while the caller writes the next but one in its place. It
  // finds out, because the job number it came for is an old one by then: the fields are written
  // (release) after that number was raised, and read (acquire) before it is compared.
  struct Job {
    std::atomic<Invoke> invoke{nullptr};
    std::atomic<void*> context{nullptr};
    std::atomic<int> items{0};
    std::atomic<int> grain{1};
  };
  // The same, read.
  struct Work {
    uint32_t number;
    Invoke invoke;
    void* context;
    int items;
    int grain;

    int chunks() const { return (items - 1) / grain + 1; }
  };

  // What a thread shows the others, on cache lines of its own.
  //
  // taken: job number << 32 | chunks of the thread's share that have been taken. A number older
  // than the job's: none. To take a chunk is to raise it. A job is over when all chunks of all
  // shares are finished, so whoever comes late finds every share taken, or of a later job.
  // finished: job number << 32 | chunks, of any share, that the thread has finished. Only the
  // thread itself writes it (release), the caller reads it (acquire) and goes on once the sum over
  // all threads is the number of chunks. It never waits for a worker that is asleep or was not
  // scheduled in time, as it takes all chunks that are left first.
  struct alignas(64) Thread {
    alignas(64) std::atomic<uint64_t> taken{0};
    alignas(64) std::atomic<uint64_t> finished{0};
  };

  void run(int items, int grain, Invoke invoke, void* context);
  void stop();
  bool read_job(uint32_t number, Work& work) const;
  void work(const Work& work, int thread);
  int take_chunk(const Work& work, int share);
  int finished_chunks(uint32_t number) const;
  void worker_main(int thread);

  const Primitives& isa_;
  const std::vector<std::vector<int>> cpus_of_threads_;  // of all, or none
  std::vector<std::thread> workers_;
  Scratch shared_;
  std::vector<Scratch> per_thread_;

  std::unique_ptr<Thread[]> of_thread_;  // [threads]
  // What a new job changes is one cache line.
  alignas(64) std::atomic<uint32_t> job_{0};  // the last one's number; sleeping workers wait on it
  Job jobs_[2];
  alignas(64) std::atomic<bool> stopping_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace edgellm::cpu
