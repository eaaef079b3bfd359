#include "kernels/cpu/pool.h"

#include <algorithm>
#include <cfenv>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/error.h"
#include "kernels/cpu/machine.h"

namespace edgellm::cpu {
namespace {

// About 50 us of spinning: longer than the time between two ops, too short to be noticed.
constexpr int kSpins = 2000;

constexpr uint64_t kEveryChunk = 0xffffffffu;

// A job's number and a count of chunks.
constexpr uint64_t word_of(uint32_t number, uint64_t chunks) {
  return static_cast<uint64_t>(number) << 32 | chunks;
}

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // waits as long as x86's pause; "yield" is no wait at all on most cores
#else
  std::this_thread::yield();
#endif
}

// The canonical arithmetic keeps subnormals and rounds to nearest even; a program that links us may
// have changed either for its threads.
void check_float_environment() {
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000;
  constexpr unsigned kDenormalsAreZero = 0x0040;
  require((_mm_getcsr() & (kFlushToZero | kDenormalsAreZero)) == 0,
          "a CPU thread flushes subnormal numbers to zero: results would differ");
#elif defined(__aarch64__)
  constexpr uint64_t kFlushInputs = 1u << 0;
  constexpr uint64_t kAlternateHandling = 1u << 1;  // of subnormals and NaN
  constexpr uint64_t kFlushToZero = 1u << 24;
  constexpr uint64_t kAlternateHalf = 1u << 26;  // half precision without infinity and NaN
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  require((control & (kFlushInputs | kAlternateHandling | kFlushToZero | kAlternateHalf)) == 0,
          "a CPU thread flushes subnormal numbers to zero, or has another change to the arithmetic "
          "of IEEE 754: results would differ");
#endif
  require(std::fegetround() == FE_TONEAREST,
          "a CPU thread does not round to nearest even: results would differ");
}

}  // namespace

void Pool::Scratch::Free::operator()(std::byte* p) const {
  ::operator delete[](p, std::align_val_t{64});
}

std::byte* Pool::Scratch::get(size_t bytes) {
  if (bytes > bytes_) {
    data_.reset();
    bytes_ = 0;
    data_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
    bytes_ = bytes;
  }
  return data_.get();
}

Pool::Pool(int threads, const Primitives& isa, std::vector<std::vector<int>> cpus_of_threads)
    : isa_(isa), cpus_of_threads_(std::move(cpus_of_threads)) {
  require(threads >= 1, "a pool needs at least one thread");
  require(cpus_of_threads_.empty() || cpus_of_threads_.size() == static_cast<size_t>(threads),
          "all threads have cores, or none");
  per_thread_.resize(static_cast<size_t>(threads));
  of_thread_ = std::make_unique<Thread[]>(static_cast<size_t>(threads));
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { worker_main(t); });
  } catch (const std::system_error& error) {
    const std::string started = std::to_string(this->threads());
    stop();
    throw Error(ExitCode::kRuntime, "the system gives this process no more than " + started +
                                        " threads (" + error.code().message() +
                                        "); use --threads " + started + " or fewer");
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

size_t Pool::scratch_bytes() const {
  size_t bytes = shared_.bytes();
  for (const Scratch& scratch : per_thread_) bytes += scratch.bytes();
  return bytes;
}

void Pool::run(int items, int grain, Invoke invoke, void* context) {
  if (workers_.empty() || items <= grain) {
    check_float_environment();
    if (items > 0) invoke(context, 0, items, 0);
    return;
  }
  const uint32_t number = job_.load(std::memory_order_relaxed) + 1;
  const Work job{number, invoke, context, items, grain};
  // Numbers return some day. No thread may have one of that long ago by then, as it might if no
  // chunk was left for it in all jobs since. No chunk is running now, so nobody else writes these.
  if (number % (1u << 20) == 0) {
    for (int t = 0; t < threads(); ++t) {
      Thread& thread = of_thread_[static_cast<size_t>(t)];
      thread.taken.store(word_of(number - 1, kEveryChunk), std::memory_order_relaxed);
      thread.finished.store(word_of(number - 1, 0), std::memory_order_relaxed);
    }
  }
  Job& shown = jobs_[number % 2];
  shown.invoke.store(invoke, std::memory_order_release);
  shown.context.store(context, std::memory_order_release);
  shown.items.store(items, std::memory_order_release);
  shown.grain.store(grain, std::memory_order_release);
  job_.store(number, std::memory_order_release);
  job_.notify_all();
  work(job, 0);
  for (int spin = 0; finished_chunks(number) < job.chunks(); ++spin) {
    if (spin < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

bool Pool::read_job(uint32_t number, Work& work) const {
  const Job& job = jobs_[number % 2];
  work = {number, job.invoke.load(std::memory_order_acquire),
          job.context.load(std::memory_order_acquire), job.items.load(std::memory_order_acquire),
          job.grain.load(std::memory_order_acquire)};
  return job_.load(std::memory_order_acquire) == number;
}

// The number of a chunk of the share; -1 where all are taken.
int Pool::take_chunk(const Work& work, int share) {
  const int64_t chunks = work.chunks();
  const auto begin = static_cast<uint32_t>(chunks * share / threads());
  const auto end = static_cast<uint32_t>(chunks * (share + 1) / threads());
  std::atomic<uint64_t>& taken = of_thread_[static_cast<size_t>(share)].taken;
  uint64_t word = taken.load(std::memory_order_relaxed);
  for (;;) {
    const auto age = static_cast<int32_t>(work.number - static_cast<uint32_t>(word >> 32));
    const uint32_t n = age > 0 ? 0 : static_cast<uint32_t>(word);
    if (age < 0 || n >= end - begin) return -1;
    // The work itself was read from the job (acquire); this order adds nothing but the count.
    if (taken.compare_exchange_weak(word, word_of(work.number, n + 1), std::memory_order_relaxed,
                                    std::memory_order_relaxed)) {
      return static_cast<int>(begin + n);
    }
  }
}

void Pool::work(const Work& work, int thread) {
  uint32_t finished = 0;
  const auto run_chunk = [&](int chunk) {
    try {
      if (finished == 0) check_float_environment();
      const int begin = chunk * work.grain;
      work.invoke(work.context, begin, std::min(begin + work.grain, work.items), thread);
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
    ++finished;
    of_thread_[static_cast<size_t>(thread)].finished.store(word_of(work.number, finished),
                                                           std::memory_order_release);
  };
  // Its own share first, then what is left of the others'.
  for (int i = 0; i < threads(); ++i) {
    const int share = (thread + i) % threads();
    for (int chunk; (chunk = take_chunk(work, share)) >= 0;) run_chunk(chunk);
  }
}

int Pool::finished_chunks(uint32_t number) const {
  int sum = 0;
  for (int t = 0; t < threads(); ++t) {
    const uint64_t word =
        of_thread_[static_cast<size_t>(t)].finished.load(std::memory_order_acquire);
    if (static_cast<uint32_t>(word >> 32) == number) sum += static_cast<int>(word & kEveryChunk);
  }
  return sum;
}

void Pool::worker_main(int thread) {
  if (!cpus_of_threads_.empty()) bind_this_thread(cpus_of_threads_[static_cast<size_t>(thread)]);
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && job_.load(std::memory_order_relaxed) == seen; ++spin) {
      pause();
    }
    job_.wait(seen, std::memory_order_relaxed);
    seen = job_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    Work job{};
    if (read_job(seen, job)) work(job, thread);
  }
}

}  // namespace edgellm::cpu
