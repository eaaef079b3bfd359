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

namespace edgellm::cpu {
namespace {

// About 50 us of spinning: longer than the time between two ops, too short to be noticed.
constexpr int kSpins = 2000;

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

Pool::Pool(int threads, const Primitives& isa) : isa_(isa) {
  require(threads >= 1, "a pool needs at least one thread");
  per_thread_.resize(static_cast<size_t>(threads));
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
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
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
  invoke_ = invoke;
  context_ = context;
  items_ = items;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  const uint64_t job = (gate_.load(std::memory_order_relaxed) >> 32) + 1;
  gate_.store(job << 32 | kOpen, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  work(0);
  gate_.fetch_and(~kOpen, std::memory_order_relaxed);
  for (int spin = 0; (gate_.load(std::memory_order_acquire) & kInside) != 0; ++spin) {
    if (spin < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Pool::work(int thread) {
  try {
    check_float_environment();
    for (;;) {
      const int begin = next_.fetch_add(grain_, std::memory_order_relaxed);
      if (begin >= items_) return;
      invoke_(context_, begin, std::min(begin + grain_, items_), thread);
    }
  } catch (...) {
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

bool Pool::enter() {
  uint64_t gate = gate_.load(std::memory_order_relaxed);
  while ((gate & kOpen) != 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void Pool::worker_main(int thread) {
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && wake_.load(std::memory_order_relaxed) == seen; ++spin) {
      pause();
    }
    wake_.wait(seen, std::memory_order_relaxed);
    seen = wake_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (!enter()) continue;
    work(thread);
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace edgellm::cpu
