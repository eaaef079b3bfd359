#include "apps/session/machine.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "base/files.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/machine.h"

namespace edgellm {
namespace {

// What stands behind `key` and the separator on a line of the file; empty where there is none.
std::string field_of(const std::string& path, const std::string& key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(separator);
    if (at == std::string::npos || !line.starts_with(key)) continue;
    const size_t begin = line.find_first_not_of(" \t\"", at + 1);
    const size_t end = line.find_last_not_of(" \t\"");
    if (begin != std::string::npos && end >= begin) return line.substr(begin, end - begin + 1);
  }
  return "";
}

// "VmRSS:  1234 kB".
Measured<uint64_t> kib_field(const std::string& path, const std::string& key) {
  const std::string text = field_of(path, key + ":", ':');
  if (text.empty()) return NotAvailable{path + " does not tell " + key};
  return uint64_t{1024} * std::strtoull(text.c_str(), nullptr, 10);
}

// "32768K" or "32M".
uint64_t cache_bytes(const std::string& text) {
  char* unit = nullptr;
  const uint64_t value = std::strtoull(text.c_str(), &unit, 10);
  return *unit == 'M' ? value << 20 : *unit == 'K' ? value << 10 : value;
}

Measured<uint64_t> last_level_cache() {
  uint64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string size =
        first_line("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    if (!size.empty()) largest = std::max(largest, cache_bytes(size));
  }
  if (largest == 0) return NotAvailable{"the system does not tell the sizes of its caches"};
  return largest;
}

Measured<std::string> governor() {
  const std::string name = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (name.empty()) return NotAvailable{"the system shows no frequency governor"};
  return name;
}

Measured<double> load() {
  std::array<double, 1> average{};
  if (getloadavg(average.data(), 1) != 1) return NotAvailable{"getloadavg failed"};
  return average[0];
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace

Measured<uint64_t> available_memory_bytes() { return kib_field("/proc/meminfo", "MemAvailable"); }

Machine read_machine() {
  Machine machine;
  machine.cpu = cpu::machine_name();
  machine.isa = cpu::isa_name();
  machine.usable_cores = cpu::usable_cores();
  machine.last_level_cache_bytes = last_level_cache();
  machine.memory_bytes = kib_field("/proc/meminfo", "MemTotal");
  machine.frequency_governor = governor();
  machine.load_average = load();
  machine.os = field_of("/etc/os-release", "PRETTY_NAME", '=');
  if (machine.os.empty()) machine.os = "unknown";
  utsname name = {};
  uname(&name);
  machine.kernel = std::string(name.sysname) + " " + name.release + " " + name.machine;
  machine.date = utc_now();
  return machine;
}

nlohmann::ordered_json to_json(const Machine& machine) {
  nlohmann::ordered_json json = {{"date", machine.date},
                                 {"cpu", machine.cpu},
                                 {"isa", machine.isa},
                                 {"usable_cores", machine.usable_cores}};
  put(json, "last_level_cache_bytes", machine.last_level_cache_bytes);
  put(json, "memory_bytes", machine.memory_bytes);
  put(json, "frequency_governor", machine.frequency_governor);
  put(json, "load_average", machine.load_average);
  json["os"] = machine.os;
  json["kernel"] = machine.kernel;
  return json;
}

ProcessUsage process_usage() {
  ProcessUsage usage;
  rusage times = {};
  getrusage(RUSAGE_SELF, &times);
  const auto ns = [](const timeval& t) {
    return int64_t{1'000'000'000} * t.tv_sec + int64_t{1000} * t.tv_usec;
  };
  usage.cpu_ns = ns(times.ru_utime) + ns(times.ru_stime);
  usage.threads = std::atoi(field_of("/proc/self/status", "Threads:", ':').c_str());
  usage.resident_bytes = kib_field("/proc/self/status", "VmRSS");
  usage.peak_resident_bytes = kib_field("/proc/self/status", "VmHWM");
  return usage;
}

bool reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;  // proc(5)
  return file.good();
}

}  // namespace edgellm
