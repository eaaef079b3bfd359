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
    return {static_cast<int>(index), list.gpus[index].name};
  }
  if (demanded) {
    throw Error(ExitCode::kDevice, "--device " + name + ": " + problem + "; use --device cpu");
  }
  log(LogLevel::kDebug, "device: the CPU, for " + problem);
  if (list.has_driver) note("running on the CPU: " + problem);
  return {};
}

}  // namespace edgellm
