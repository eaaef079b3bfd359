// The CPU backend's threads: every item once, for any sizes, with more threads than cores.
#include "kernels/cpu/pool.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/cpu/isa.h"
#include "tests/support/random.h"

namespace edgellm {
namespace {

using test::Random;

TEST_CASE("a pool runs every item of a job once, in ranges of at most the grain") {
  Random random(7);
  for (const int threads : {1, 2, 3, 8}) {
    cpu::Pool pool(threads, cpu::primitives());
    for (int job = 0; job < 3000; ++job) {
      const int items = random.below(job % 10 == 0 ? 2000 : 40);
      const int grain = 1 + random.below(job % 3 == 0 ? 50 : 3);
      std::vector<int> runs(static_cast<size_t>(items));
      std::atomic<bool> is_wrong{false};
      pool.for_each(items, grain, [&](int begin, int end, int thread) {
        if (thread < 0 || thread >= threads || begin >= end) is_wrong = true;
        if (end - begin > grain && !(begin == 0 && end == items && threads == 1)) is_wrong = true;
        for (int i = begin; i < end; ++i) ++runs[static_cast<size_t>(i)];
        if (job % 500 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      });
      INFO(threads << " threads, job " << job << ", " << items << " items by " << grain);
      REQUIRE_FALSE(is_wrong);
      REQUIRE(runs == std::vector<int>(static_cast<size_t>(items), 1));
    }
  }
}

TEST_CASE(
    "workers that sleep between jobs are woken, and one that is busy holds up no other's items") {
  cpu::Pool pool(3, cpu::primitives());
  for (int job = 0; job < 5; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    // One item waits until all the others have run, those of its own thread's share included.
    std::atomic<int> others{0};
    pool.for_each(30, 1, [&](int begin, int, int) {
      if (begin != 0) {
        ++others;
        return;
      }
      while (others < 29) std::this_thread::yield();
    });
    REQUIRE(others == 29);
  }
}

TEST_CASE("an exception of an item is rethrown, and the pool serves the next job") {
  cpu::Pool pool(3, cpu::primitives());
  for (const int bad : {0, 17, 39}) {
    REQUIRE_THROWS_AS(pool.for_each(40, 1,
                                    [&](int begin, int, int) {
                                      if (begin == bad) throw std::runtime_error("item");
                                    }),
                      std::runtime_error);
    std::atomic<int> items{0};
    pool.for_each(40, 4, [&](int begin, int end, int) { items += end - begin; });
    REQUIRE(items == 40);
  }
}

}  // namespace
}  // namespace edgellm
