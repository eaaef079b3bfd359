// What is read of the machine, on whatever machine the test runs.
#include "bench/machine.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "base/clock.h"

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
  const ProcessUsage before = process_usage();
  CHECK(before.threads >= 1);
  constexpr size_t kBytes = size_t{64} << 20;
  int64_t busy_ns = 0;
  {
    const std::vector<char> touched(kBytes, 1);
    std::thread other([&] {
      const int64_t start = process_usage().cpu_ns;
      while (process_usage().cpu_ns - start < 50'000'000) continue;
      busy_ns = process_usage().cpu_ns - start;
    });
    other.join();
    REQUIRE(touched.back() == 1);
  }
  const ProcessUsage after = process_usage();
  CHECK(after.cpu_ns - before.cpu_ns >= busy_ns);
  REQUIRE(after.peak_resident_bytes);
  CHECK(*after.peak_resident_bytes >= *before.resident_bytes + kBytes / 2);
  CHECK(*after.resident_bytes <= *after.peak_resident_bytes);
}

}  // namespace
}  // namespace edgellm::bench
