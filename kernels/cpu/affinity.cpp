#include "kernels/cpu/affinity.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <tuple>

#include "base/files.h"
#include "base/text.h"
#include "kernels/cpu/machine.h"

namespace edgellm::cpu {
namespace {

// -1 where the file holds no number.
int number_in(const std::string& path) {
  const std::string text = first_line(path);
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Those of `cpus` that a list names.
std::vector<int> those_in(const std::vector<int>& cpus, const std::string& list) {
  const std::vector<int> named = parse_cpu_list(list);
  std::vector<int> both;
  std::ranges::copy_if(cpus, std::back_inserter(both),
                       [&](int cpu) { return std::ranges::find(named, cpu) != named.end(); });
  return both;
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto read = [&](int& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    at = next;
    return error == std::errc() && value >= 0 && value < kMostCpus;
  };
  while (at != end) {
    int first = 0;
    if (!read(first)) return {};
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      if (!read(last) || last < first) return {};
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (at == end) break;
    if (*at++ != ',' || at == end) return {};
  }
  return cpus;
}

std::vector<int> near_pci_device(const std::vector<int>& cpus, const std::string& bus_id,
                                 const std::string& sysfs) {
  // sysfs has small letters, and a domain of four digits.
  std::string name = lower_ascii(bus_id);
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return {};
  if (colon > 4) name = name.substr(colon - 4);
  return those_in(cpus, first_line(sysfs + "/bus/pci/devices/" + name + "/local_cpulist"));
}

int physical_cores(const std::vector<int>& cpus, const std::string& sysfs) {
  return static_cast<int>(std::ranges::count_if(cpus, [&](int cpu) {
    const std::string list = first_line(sysfs + "/devices/system/cpu/cpu" + std::to_string(cpu) +
                                        "/topology/thread_siblings_list");
    // The first of its core's threads that may be used counts.
    return std::ranges::none_of(parse_cpu_list(list), [&](int sibling) {
      return sibling < cpu && std::ranges::find(cpus, sibling) != cpus.end();
    });
  }));
}

std::vector<std::vector<int>> share_out(const std::vector<int>& cpus, int n_parts,
                                        const std::string& sysfs) {
  std::vector<std::tuple<int, int, int>> places;  // processor, core, number
  for (const int cpu : cpus) {
    const std::string topology =
        sysfs + "/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    places.emplace_back(number_in(topology + "physical_package_id"),
                        number_in(topology + "core_id"), cpu);
  }
  std::ranges::sort(places);
  std::vector<std::vector<int>> parts(static_cast<size_t>(n_parts));
  for (size_t i = 0; i < places.size(); ++i) {
    parts[i * parts.size() / places.size()].push_back(std::get<2>(places[i]));
  }
  return parts;
}

std::vector<std::vector<int>> numa_nodes(const std::vector<int>& cpus, const std::string& sysfs) {
  const std::string folder = sysfs + "/devices/system/node/";
  const std::vector<int> numbers = parse_cpu_list(first_line(folder + "online"));
  std::vector<std::vector<int>> nodes;
  if (numbers.size() < 2) return nodes;
  for (const int number : numbers) {
    const std::string name = "node" + std::to_string(number);
    std::vector<int> of_node = those_in(cpus, first_line(folder + name + "/cpulist"));
    if (!of_node.empty()) nodes.push_back(std::move(of_node));
  }
  return nodes;
}

std::vector<std::vector<int>> cpus_of_threads(int threads,
                                              const std::vector<std::vector<int>>& nodes) {
  std::vector<size_t> node_of_core;
  for (size_t node = 0; node < nodes.size(); ++node) {
    node_of_core.insert(node_of_core.end(), nodes[node].size(), node);
  }
  std::vector<std::vector<int>> cpus;
  if (node_of_core.empty()) return cpus;
  const auto n = static_cast<size_t>(threads);
  for (size_t t = 0; t < n; ++t) {
    cpus.push_back(nodes[node_of_core[t * node_of_core.size() / n]]);
  }
  return cpus;
}

}  // namespace edgellm::cpu
