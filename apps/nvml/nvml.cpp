#include "apps/nvml/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "apps/nvml/nvml_api.h"

namespace edgellm {
namespace {

using namespace nvml_api;

// The library and its functions. A function that an older driver lacks is null.
class Library {
 public:
  static Measured<std::shared_ptr<Library>> open() {
    const char* named = std::getenv("EDGELLM_NVML");
    const std::string path = named != nullptr && *named != '\0' ? named : "libnvidia-ml.so.1";
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      return NotAvailable{"NVML, the driver's management library, could not be opened (" + path +
                          ")"};
    }
    std::shared_ptr<Library> library(new Library(handle));
    if (library->init == nullptr || library->shutdown == nullptr ||
        library->handle_by_pci_bus_id == nullptr) {
      return NotAvailable{path + " lacks the functions of NVML"};
    }
    const Return status = library->init();
    if (status != kSuccess) return NotAvailable{"nvmlInit_v2: " + library->text_of(status)};
    library->initialised_ = true;
    return library;
  }
  ~Library() {
    if (initialised_) shutdown();
    dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  std::string text_of(Return status) const {
    const char* text = error_string != nullptr ? error_string(status) : nullptr;
    return text != nullptr ? text : "NVML error " + std::to_string(status);
  }

  // What the function `name` returns through its last argument, or why it does not.
  template <class T, class Function, class... Arguments>
  Measured<T> ask(const char* name, Function* function, Arguments... arguments) const {
    if (function == nullptr) return NotAvailable{std::string("this driver has no ") + name};
    T value{};
    const Return status = function(arguments..., &value);
    if (status != kSuccess) return NotAvailable{std::string(name) + ": " + text_of(status)};
    return value;
  }

 private:
  explicit Library(void* handle) : handle_(handle) {
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(error_string, "nvmlErrorString");
    find(handle_by_pci_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
    find(driver_version, "nvmlSystemGetDriverVersion");
    find(total_energy, "nvmlDeviceGetTotalEnergyConsumption");
    find(power_usage, "nvmlDeviceGetPowerUsage");
    find(field_values, "nvmlDeviceGetFieldValues");
    find(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(clock_info, "nvmlDeviceGetClockInfo");
    find(temperature, "nvmlDeviceGetTemperature");
    find(clocks_event_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
    // The name until driver 535.
    if (clocks_event_reasons == nullptr) {
      find(clocks_event_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    }
    find(persistence_mode, "nvmlDeviceGetPersistenceMode");
    find(link_generation, "nvmlDeviceGetCurrPcieLinkGeneration");
    find(link_width, "nvmlDeviceGetCurrPcieLinkWidth");
    find(max_link_generation, "nvmlDeviceGetMaxPcieLinkGeneration");
    find(max_link_width, "nvmlDeviceGetMaxPcieLinkWidth");
    find(pcie_throughput, "nvmlDeviceGetPcieThroughput");
    find(memory_info, "nvmlDeviceGetMemoryInfo");
    find(compute_processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  }

  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
  }

  void* handle_;
  bool initialised_ = false;

 public:
  Init* init = nullptr;
  Shutdown* shutdown = nullptr;
  ErrorString* error_string = nullptr;
  HandleByPciBusId* handle_by_pci_bus_id = nullptr;
  DriverVersion* driver_version = nullptr;
  GetU64* total_energy = nullptr;  // mJ
  GetU32* power_usage = nullptr;   // mW
  FieldValues* field_values = nullptr;
  GetU32* power_limit = nullptr;  // mW
  GetOfKind* clock_info = nullptr;
  GetOfKind* temperature = nullptr;
  GetU64* clocks_event_reasons = nullptr;
  GetU32* persistence_mode = nullptr;
  GetU32* link_generation = nullptr;
  GetU32* link_width = nullptr;
  GetU32* max_link_generation = nullptr;
  GetU32* max_link_width = nullptr;
  GetOfKind* pcie_throughput = nullptr;  // KB/s
  MemoryInfo* memory_info = nullptr;
  ComputeProcesses* compute_processes = nullptr;
};

class LoadedDevice final : public NvmlDevice {
 public:
  LoadedDevice(std::shared_ptr<Library> library, Device device)
      : library_(std::move(library)), device_(device), power_is_instant_(bool(instant_power())) {}

  Measured<std::string> driver_version() const override {
    std::array<char, 96> text{};
    if (library_->driver_version == nullptr) {
      return NotAvailable{"this driver has no nvmlSystemGetDriverVersion"};
    }
    const Return status = library_->driver_version(text.data(), text.size() - 1);
    if (status != kSuccess) {
      return NotAvailable{"nvmlSystemGetDriverVersion: " + library_->text_of(status)};
    }
    return std::string(text.data());
  }
  Measured<double> power_limit_w() const override {
    return ask<unsigned>("nvmlDeviceGetEnforcedPowerLimit", library_->power_limit).map(from_milli);
  }
  Measured<bool> persistence_mode() const override {
    return ask<unsigned>("nvmlDeviceGetPersistenceMode", library_->persistence_mode)
        .map([](unsigned mode) { return mode == 1; });
  }
  Measured<PcieLink> pcie_link() const override {
    return link("nvmlDeviceGetCurrPcieLinkGeneration", library_->link_generation,
                "nvmlDeviceGetCurrPcieLinkWidth", library_->link_width);
  }
  Measured<PcieLink> pcie_link_max() const override {
    return link("nvmlDeviceGetMaxPcieLinkGeneration", library_->max_link_generation,
                "nvmlDeviceGetMaxPcieLinkWidth", library_->max_link_width);
  }
  Measured<double> energy_j() const override {
    return ask<unsigned long long>("nvmlDeviceGetTotalEnergyConsumption", library_->total_energy)
        .map([](unsigned long long mj) { return static_cast<double>(mj) / 1000; });
  }
  Measured<double> power_w() const override {
    if (power_is_instant_) return instant_power();
    return ask<unsigned>("nvmlDeviceGetPowerUsage", library_->power_usage).map(from_milli);
  }
  bool power_is_instant() const override { return power_is_instant_; }
  Measured<unsigned> sm_clock_mhz() const override { return clock(kSmClock); }
  Measured<unsigned> memory_clock_mhz() const override { return clock(kMemoryClock); }
  Measured<unsigned> temperature_c() const override {
    return ask<unsigned>("nvmlDeviceGetTemperature", library_->temperature, kGpuSensor);
  }
  Measured<uint64_t> throttle_reasons() const override {
    return ask<unsigned long long>("nvmlDeviceGetCurrentClocksEventReasons",
                                   library_->clocks_event_reasons)
        .map([](unsigned long long bits) { return uint64_t{bits}; });
  }
  Measured<uint64_t> memory_used_bytes() const override {
    return ask<Memory>("nvmlDeviceGetMemoryInfo", library_->memory_info)
        .map([](const Memory& memory) { return uint64_t{memory.used}; });
  }
  Measured<uint64_t> process_memory_bytes() const override {
    constexpr const char* kName = "nvmlDeviceGetComputeRunningProcesses_v3";
    if (library_->compute_processes == nullptr) {
      return NotAvailable{std::string("this driver has no ") + kName};
    }
    std::vector<Process> processes(256);
    auto count = static_cast<unsigned>(processes.size());
    const Return status = library_->compute_processes(device_, &count, processes.data());
    if (status != kSuccess)
      return NotAvailable{std::string(kName) + ": " + library_->text_of(status)};
    for (unsigned i = 0; i < count; ++i) {
      const Process& process = processes[i];
      if (process.pid != static_cast<unsigned>(getpid())) continue;
      if (process.used_memory == kNoValue) break;
      return uint64_t{process.used_memory};
    }
    return NotAvailable{
        "NVML lists no memory of this process (in a container it knows it by another number)"};
  }
  Measured<double> pcie_sent_bytes_per_s() const override { return throughput(kPcieSent); }
  Measured<double> pcie_received_bytes_per_s() const override { return throughput(kPcieReceived); }

 private:
  static double from_milli(unsigned value) { return static_cast<double>(value) / 1000; }

  template <class T, class Function, class... Arguments>
  Measured<T> ask(const char* name, Function* function, Arguments... arguments) const {
    return library_->ask<T>(name, function, device_, arguments...);
  }

  Measured<unsigned> clock(unsigned kind) const {
    return ask<unsigned>("nvmlDeviceGetClockInfo", library_->clock_info, kind);
  }

  Measured<double> throughput(unsigned direction) const {
    return ask<unsigned>("nvmlDeviceGetPcieThroughput", library_->pcie_throughput, direction)
        .map([](unsigned kb_s) { return 1000.0 * kb_s; });
  }

  Measured<PcieLink> link(const char* generation_name, GetU32* generation, const char* width_name,
                          GetU32* width) const {
    const auto g = ask<unsigned>(generation_name, generation);
    if (!g) return g.missing();
    return ask<unsigned>(width_name, width).map([&](unsigned w) { return PcieLink{*g, w}; });
  }

  Measured<double> instant_power() const {
    FieldValue value{};
    value.field = kPowerInstantField;
    if (library_->field_values == nullptr) {
      return NotAvailable{"this driver has no nvmlDeviceGetFieldValues"};
    }
    Return status = library_->field_values(device_, 1, &value);
    if (status == kSuccess) status = value.status;
    if (status != kSuccess) {
      return NotAvailable{"nvmlDeviceGetFieldValues: " + library_->text_of(status)};
    }
    return from_milli(value.value.u32);
  }

  std::shared_ptr<Library> library_;
  Device device_;
  bool power_is_instant_;
};

}  // namespace

Measured<std::shared_ptr<NvmlDevice>> open_nvml_device(const std::string& pci_bus_id) {
  const Measured<std::shared_ptr<Library>> library = Library::open();
  if (!library) return library.missing();
  const auto device = (*library)->ask<Device>("nvmlDeviceGetHandleByPciBusId_v2",
                                              (*library)->handle_by_pci_bus_id, pci_bus_id.c_str());
  if (!device) return device.missing();
  return std::shared_ptr<NvmlDevice>(std::make_shared<LoadedDevice>(*library, *device));
}

std::vector<std::string> throttle_reason_names(uint64_t reasons) {
  // nvmlClocksEventReason*.
  constexpr std::array<const char*, 9> kNames = {"idle",
                                                 "applications_clocks_setting",
                                                 "sw_power_cap",
                                                 "hw_slowdown",
                                                 "sync_boost",
                                                 "sw_thermal_slowdown",
                                                 "hw_thermal_slowdown",
                                                 "hw_power_brake_slowdown",
                                                 "display_clock_setting"};
  std::vector<std::string> names;
  for (size_t bit = 0; bit < kNames.size(); ++bit) {
    if ((reasons >> bit & 1) != 0) names.emplace_back(kNames[bit]);
  }
  if (const uint64_t unknown = reasons >> kNames.size() << kNames.size(); unknown != 0) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(unknown));
    names.emplace_back(text.data());
  }
  return names;
}

}  // namespace edgellm
