#include "apps/session/device.h"

#include <algorithm>

#include "apps/common/near_matches.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/cuda/gpu_list.h"

namespace edgellm {

bool is_device_name(const std::string& name) {
  if (name == "auto" || name == "cpu" || name == "cuda") return true;
  constexpr std::string_view kPrefix = "cuda:";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() && name.size() <= 8 &&
         std::all_of(name.begin() + kPrefix.size(), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

std::string device_name_problem(const std::string& name) {
  if (is_device_name(name)) return "";
  // The nearest word to gpu is cpu, which nobody means who types it.
  return "unknown device " + name + "; use auto, cpu, cuda or cuda:N" +
         (name == "gpu" ? "; did you mean cuda?" : did_you_mean(name, {"auto", "cpu", "cuda"}));
}

namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 3 &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// One name for each device but "cuda:all": "cuda:0,1" is "cuda:0" and "cuda:1".
std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    std::string name = list.substr(at, comma - at);
    const bool is_behind_gpu = !names.empty() && names.back().starts_with("cuda:");
    if (is_behind_gpu && is_number(name)) name = "cuda:" + name;
    names.push_back(std::move(name));
    at = comma + 1;
  }
  return names;
}

// What is chosen by the shape of a GPU is chosen once for a process
// (kernels/cuda/device/launch.cuh).
void require_same_kind(const GpuList& list, const std::vector<Device>& devices,
                       const std::string& names) {
  const GpuInfo* first = nullptr;
  for (const Device& device : devices) {
    if (!device.gpu) continue;
    const GpuInfo& gpu = list.gpus[static_cast<size_t>(*device.gpu)];
    if (first == nullptr) first = &gpu;
    if (gpu.name == first->name && gpu.multiprocessors == first->multiprocessors) continue;
    throw Error(ExitCode::kUnsupported,
                "--device " + names + ": GPU " + std::to_string(first->index) + " is a " +
                    first->name + ", GPU " + std::to_string(gpu.index) + " is a " + gpu.name +
                    ", and one process runs GPUs of one kind only; name those of one kind, and "
                    "start a process for each kind (batch --shard divides the requests)");
  }
}

}  // namespace

std::string device_list_problem(const std::string& names) {
  const std::vector<std::string> all = names_in(names);
  if (all.size() == 1 && all.front() == "auto") return "";
  for (const std::string& name : all) {
    if (name == "auto") return "auto chooses one device and stands alone; see --help";
    if (name == "cuda:all") continue;
    if (std::string problem = device_name_problem(name); !problem.empty()) return problem;
  }
  return "";
}

Device choose_device(const std::string& name, const Note& note) {
  if (name == "cpu") {
    log(LogLevel::kDebug, "device: the CPU, as asked for");
    return {};
  }
  const bool demanded = name != "auto";
  const size_t index = name.starts_with("cuda:") ? std::stoul(name.substr(5)) : size_t{0};
  const GpuList list = list_gpus();
  std::string problem = list.problem;
  if (problem.empty() && index >= list.gpus.size()) {
    problem = "the GPUs are numbered 0 to " + std::to_string(list.gpus.size() - 1);
  }
  if (problem.empty() && !is_supported(list.gpus[index])) {
    problem = list.gpus[index].name + " is older than compute capability 7.5";
  }
  if (problem.empty()) {
    log(LogLevel::kDebug, "device: GPU " + std::to_string(index) + ", " + list.gpus[index].name);
    return {static_cast<int>(index), list.gpus[index].name, list.gpus[index].pci_bus_id};
  }
  if (demanded) {
    throw Error(ExitCode::kDevice, "--device " + name + ": " + problem + "; use --device cpu");
  }
  log(LogLevel::kDebug, "device: the CPU, for " + problem);
  if (list.has_driver) note("running on the CPU: " + problem);
  return {};
}

std::vector<Device> choose_devices(const std::string& names, const Note& note) {
  std::vector<Device> devices;
  const std::vector<std::string> all = names_in(names);
  for (const std::string& name : all) {
    if (name != "cuda:all") {
      devices.push_back(choose_device(name, note));
      continue;
    }
    const size_t n_gpus = list_gpus().gpus.size();
    // Where there is none, choose_device() says why.
    for (size_t i = 0; i < std::max<size_t>(n_gpus, 1); ++i) {
      devices.push_back(choose_device("cuda:" + std::to_string(i), note));
    }
  }
  if (devices.size() > 1) require_same_kind(list_gpus(), devices, names);
  return devices;
}

}  // namespace edgellm
