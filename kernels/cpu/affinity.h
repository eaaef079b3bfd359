// On which cores threads should run (bind_this_thread, machine.h, makes them). Memory comes from
// the NUMA node of the thread that first writes it, and a GPU is reached quicker from the node that
// its slot belongs to.
//
// Cores have Linux's numbers. All of it is a hint: where the system says nothing or refuses,
// threads run anywhere.
#pragma once

#include <string>
#include <vector>

namespace edgellm::cpu {

// "0-3,8,10-11", as sysfs writes a list of cores. Empty where the text is something else.
std::vector<int> parse_cpu_list(const std::string& text);

// Those of `cpus` that are near a PCI device ("0000:1B:00.0", the domain with up to eight digits);
// empty where the system does not say which, or none is.
std::vector<int> near_pci_device(const std::vector<int>& cpus, const std::string& bus_id,
                                 const std::string& sysfs = "/sys");

// How many of `cpus` are left if only one thread of each core counts.
int physical_cores(const std::vector<int>& cpus, const std::string& sysfs = "/sys");

// The cores in `n_parts` parts whose sizes differ by one at most: those of a processor, and the two
// threads of a core, are together as far as that allows.
std::vector<std::vector<int>> share_out(const std::vector<int>& cpus, int n_parts,
                                        const std::string& sysfs = "/sys");

// Which of `cpus` each of the machine's NUMA nodes has, nodes without one left out. Empty where the
// machine has one node or does not say.
std::vector<std::vector<int>> numa_nodes(const std::vector<int>& cpus,
                                         const std::string& sysfs = "/sys");

// The node of each of `threads` threads: as many of a node as it has of all nodes' cores, and
// neighbours together. Every thread gets all cores of its node. Empty for no nodes.
std::vector<std::vector<int>> cpus_of_threads(int threads,
                                              const std::vector<std::vector<int>>& nodes);

}  // namespace edgellm::cpu
