// What is read of the machine that the test runs on.
#include "apps/session/machine.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <ctime>
#include <thread>
#include <vector>

namespace edgellm::bench {
namespace {

TEST_CASE("the machine is described") {
  const Machine machine = read_machine();
  CHECK(!machine.cpu.empty());
  CHECK(machine.usable_cores >= 1);
  REQUIRE(machine.memory_bytes);
  CHECK(*machine.memory_bytes > uint64_t{64} << 20);
  CHECK(machine.kernel.starts_with("Linux "));
  CHECK(machine.date.size() == std::string("2026-11-21T16:25:14Z").size());
  CHECK(machine.date.back() == 'Z');
  const nlohmann::ordered_json json = to_json(machine);
  for (const auto& [name, value] : json.items()) {
    INFO(name);
    CHECK((!value.is_null() || json["not_available"].contains(name)));
  }
}

TEST_CASE("CPU time counts every thread, memory its peak") {
  const ProcessUsage at_first = process_usage();
  CHECK(at_first.threads >= 1);
  ProcessUsage before;
  constexpr size_t kBytes = size_t{64} << 20;
  std::atomic<int> spins = 0;
  int64_t busy_ns = 0;  // by the thread's own clock
  {
    const std::vector<char> touched(kBytes, 1);
    before = process_usage();
    std::thread other([&] {
      while (busy_ns < 50'000'000) {
        timespec used = {};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
        busy_ns = int64_t{1'000'000'000} * used.tv_sec + used.tv_nsec;
        // In user time, for the most part.
        for (int i = 0; i < 100'000; ++i) spins.fetch_add(1, std::memory_order_relaxed);
      }
    });
    other.join();
    REQUIRE(touched.back() == 1);
  }
  const ProcessUsage after = process_usage();
  // The kernel keeps user and system time in ticks at worst.
  CHECK(after.cpu_ns - before.cpu_ns >= busy_ns - 20'000'000);
  REQUIRE(after.peak_resident_bytes);
  CHECK(*after.peak_resident_bytes >= *at_first.resident_bytes + kBytes / 2);
  CHECK(*after.resident_bytes <= *after.peak_resident_bytes);
}

}  // namespace
}  // namespace edgellm::bench
