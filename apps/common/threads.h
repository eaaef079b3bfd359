// Work that is done in several places at the same time.
#pragma once

#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace edgellm {

// Calls work(0) .. work(n - 1), each on a thread of its own, and returns when all have ended.
// Throws what the first of them in this order has thrown.
template <class Work>
void on_threads(size_t n, const Work& work) {
  std::vector<std::exception_ptr> failures(n);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < n; ++i) {
    threads.emplace_back([&work, &failures, i] {
      try {
        work(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace edgellm
