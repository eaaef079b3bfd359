// Which cores threads are bound to and how many may be used: Linux's lists, and machines that exist
// only as files.
#include "kernels/cpu/affinity.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <thread>

#include "kernels/cpu/machine.h"
#include "tests/support/temp_dir.h"

namespace edgellm::cpu {
namespace {

using Cpus = std::vector<int>;

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text << "\n";
}

TEST_CASE("lists of cores are read as sysfs writes them") {
  CHECK(parse_cpu_list("0") == Cpus{0});
  CHECK(parse_cpu_list("0-3,8,10-11") == Cpus{0, 1, 2, 3, 8, 10, 11});
  for (const std::string bad : {"", "x", "3-1", "1,", ",1", "1-", "-1", "0-99999", "1 2", "1;2"}) {
    INFO(bad);
    CHECK(parse_cpu_list(bad).empty());
  }
}

TEST_CASE("cores near a PCI device are those of its node that may be used") {
  const test::TempDir sys;
  write(sys / "bus/pci/devices/0000:1b:00.0/local_cpulist", "4-7,12-15");
  Cpus all(16);
  std::iota(all.begin(), all.end(), 0);
  CHECK(near_pci_device(all, "0000:1B:00.0", sys.path().string()) ==
        Cpus{4, 5, 6, 7, 12, 13, 14, 15});
  CHECK(near_pci_device(all, "00000000:1B:00.0", sys.path().string()).size() == 8);
  CHECK(near_pci_device({2, 3, 4, 5}, "0000:1B:00.0", sys.path().string()) == Cpus{4, 5});
  CHECK(near_pci_device({0, 1}, "0000:1B:00.0", sys.path().string()).empty());
  CHECK(near_pci_device(all, "0000:3B:00.0", sys.path().string()).empty());
  CHECK(near_pci_device(all, "", sys.path().string()).empty());
}

TEST_CASE("NUMA nodes are those of the cores that may be used") {
  const test::TempDir sys;
  const std::string root = sys.path().string();
  const Cpus all{0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(numa_nodes(all, root).empty());  // the system says nothing
  write(sys / "devices/system/node/online", "0");
  write(sys / "devices/system/node/node0/cpulist", "0-7");
  CHECK(numa_nodes(all, root).empty());  // one node
  write(sys / "devices/system/node/online", "0-2");
  write(sys / "devices/system/node/node0/cpulist", "0-1,4-5");
  write(sys / "devices/system/node/node1/cpulist", "2-3,6-7");
  write(sys / "devices/system/node/node2/cpulist", "");  // memory without cores
  CHECK(numa_nodes(all, root) == std::vector<Cpus>{{0, 1, 4, 5}, {2, 3, 6, 7}});
  CHECK(numa_nodes({1, 2, 3}, root) == std::vector<Cpus>{{1}, {2, 3}});
  CHECK(numa_nodes({2, 7}, root) == std::vector<Cpus>{{2, 7}});
}

TEST_CASE("each node gets as many threads as it has of the cores") {
  const Cpus a{0, 1, 4, 5};
  const Cpus b{2, 3};
  CHECK(cpus_of_threads(3, {}).empty());
  CHECK(cpus_of_threads(1, {a, b}) == std::vector<Cpus>{a});
  CHECK(cpus_of_threads(2, {a, b}) == std::vector<Cpus>{a, a});
  CHECK(cpus_of_threads(3, {a, b}) == std::vector<Cpus>{a, a, b});
  CHECK(cpus_of_threads(6, {a, b}) == std::vector<Cpus>{a, a, a, a, b, b});
  CHECK(cpus_of_threads(12, {b, a}) == std::vector<Cpus>{b, b, b, b, a, a, a, a, a, a, a, a});
}

TEST_CASE("the two threads of a core count as one, if both may be used") {
  const test::TempDir sys;
  const auto count = [&](const Cpus& cpus) { return physical_cores(cpus, sys.path().string()); };
  // Two cores with two threads, and two with one, as performance and efficiency cores are.
  const char* siblings[] = {"0,2", "1,3", "0,2", "1,3", "4", "5"};
  for (int cpu = 0; cpu < 6; ++cpu) {
    write(sys / "devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          siblings[cpu]);
  }
  CHECK(count({0, 1, 2, 3, 4, 5}) == 4);
  CHECK(count({2, 3}) == 2);
  CHECK(count({1, 3}) == 1);
  CHECK(count({}) == 0);
  CHECK(physical_cores({0, 1, 2}, sys / "none") == 3);  // the system says nothing
}

TEST_CASE("cores are shared out by processor and core") {
  // Two processors of two cores with two threads; the second threads are numbered behind.
  const test::TempDir sys;
  for (int cpu = 0; cpu < 8; ++cpu) {
    const std::string topology =
        sys / "devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    write(topology + "physical_package_id", std::to_string(cpu / 2 % 2));
    write(topology + "core_id", std::to_string(cpu % 2));
  }
  const Cpus all = {0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(share_out(all, 2, sys.path().string()) == std::vector<Cpus>{{0, 4, 1, 5}, {2, 6, 3, 7}});
  CHECK(share_out(all, 4, sys.path().string()) ==
        std::vector<Cpus>{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(share_out({0, 1, 2}, 2, sys.path().string()) == std::vector<Cpus>{{0, 1}, {2}});
  CHECK(share_out({3}, 2, sys.path().string()) == std::vector<Cpus>{{3}, {}});
  // A system that says nothing: by number.
  CHECK(share_out({0, 1, 2, 3}, 2, sys / "none") == std::vector<Cpus>{{0, 1}, {2, 3}});
}

TEST_CASE("the CPU time of a control group becomes a number of threads") {
  REQUIRE(cores_of_quota("max 100000") == std::nullopt);
  REQUIRE(cores_of_quota("") == std::nullopt);
  REQUIRE(cores_of_quota("100000") == std::nullopt);
  REQUIRE(cores_of_quota("400000 100000") == 4);
  REQUIRE(cores_of_quota("350000 100000") == 3);
  REQUIRE(cores_of_quota("20000 100000") == 1);
  REQUIRE(cores_of_quota("-1 100000") == std::nullopt);
}

TEST_CASE("the least limit of a process's control groups counts, of either version") {
  const test::TempDir root;
  const auto quota = [&] { return quota_of_groups(root.path().string()); };
  REQUIRE(quota() == std::nullopt);  // no control groups at all
  write(root / "proc/self/cgroup", "0::/user.slice/job");
  write(root / "sys/fs/cgroup/user.slice/job/cpu.max", "max 100000");
  REQUIRE(quota() == std::nullopt);
  write(root / "sys/fs/cgroup/user.slice/cpu.max", "600000 100000");
  REQUIRE(quota() == 6);
  write(root / "sys/fs/cgroup/user.slice/job/cpu.max", "300000 100000");
  REQUIRE(quota() == 3);

  // Version 1, seen from inside a container: the path is the host's, the group the root.
  write(root / "proc/self/cgroup",
        "5:memory:/docker/5f\n4:cpu,cpuacct:/docker/5f\n1:name=systemd:/x");
  write(root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  write(root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  REQUIRE(quota() == std::nullopt);
  write(root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000");
  REQUIRE(quota() == 2);
  write(root / "sys/fs/cgroup/cpu,cpuacct/docker/5f/cpu.cfs_quota_us", "100000");
  write(root / "sys/fs/cgroup/cpu,cpuacct/docker/5f/cpu.cfs_period_us", "100000");
  REQUIRE(quota() == 1);
}

TEST_CASE("a thread is bound, and so is one that it starts") {
  const Cpus allowed = allowed_cpus();
  REQUIRE(!allowed.empty());
  const Cpus last = {allowed.back()};
  Cpus of_thread;
  Cpus of_its_own;
  std::thread([&] {
    bind_this_thread({});
    CHECK(allowed_cpus() == allowed);
    bind_this_thread(last);
    of_thread = allowed_cpus();
    std::thread([&] { of_its_own = allowed_cpus(); }).join();
  }).join();
  CHECK(of_thread == last);
  CHECK(of_its_own == last);
  CHECK(allowed_cpus() == allowed);
}

}  // namespace
}  // namespace edgellm::cpu
