// edgellm devices: what this machine could run a model on.
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/inspect/commands.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/machine.h"
#include "kernels/cuda/gpu_list.h"

namespace edgellm {
namespace {

struct DevicesFlags {
  bool json = false;
};

void print_as_json(const GpuList& list) {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  for (const GpuInfo& gpu : list.gpus) {
    gpus.push_back({{"index", gpu.index},
                    {"name", gpu.name},
                    {"compute_capability",
                     std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor)},
                    {"multiprocessors", gpu.multiprocessors},
                    {"total_bytes", gpu.total_bytes},
                    {"free_bytes", gpu_free_bytes(gpu.index)}});
  }
  print_json(
      {{"schema", "edgellm.devices/1"},
       {"cpu",
        {{"name", cpu::machine_name()}, {"cores", cpu::usable_cores()}, {"isa", cpu::isa_name()}}},
       {"gpus", gpus},
       {"gpu_problem", list.problem}});
}

void print_as_text(const GpuList& list) {
  std::string out = "cpu     " + cpu::machine_name() + ", " + std::to_string(cpu::usable_cores()) +
                    " usable cores, " + cpu::isa_name() + "\n";
  for (const GpuInfo& gpu : list.gpus) {
    out += "cuda:" + std::to_string(gpu.index) + "  " + gpu.name + ", compute capability " +
           std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor) + ", " +
           std::to_string(gpu.multiprocessors) + " multiprocessors, " +
           human_bytes(gpu.total_bytes) + ", " + human_bytes(gpu_free_bytes(gpu.index)) + " free\n";
  }
  if (list.gpus.empty()) out += "cuda    none: " + list.problem + "\n";
  write_stdout(out);
}

int devices(const DevicesFlags& flags) {
  const GpuList list = list_gpus();
  if (flags.json) {
    print_as_json(list);
  } else {
    print_as_text(list);
  }
  return 0;
}

}  // namespace

void add_devices(Program& program) {
  Command& command =
      program.add("devices", "List the processors a model could run on", "  edgellm devices");
  auto flags = std::make_shared<DevicesFlags>();
  command.flag("--json", flags->json, "Print one JSON object");
  command.runs([flags] { return devices(*flags); });
}

}  // namespace edgellm
