// Not NVIDIA's NVML: a library of its names with values that a test knows, built to try our reader
// where there is no GPU. It shows that the reader opens a library, calls what the ABI says
// (apps/nvml/nvml_api.h) and reports what comes back; not what a real driver answers.
//
// FAKE_NVML, read at each call: "no_init" fails to start, "no_device" knows no GPU, "no_energy",
// "no_power" and "no_pcie" lack that sensor.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "apps/nvml/nvml_api.h"
#include "base/clock.h"

using namespace edgellm::nvml_api;

namespace {

bool is(const char* fault) {
  const char* mode = std::getenv("FAKE_NVML");
  return mode != nullptr && std::string_view(mode) == fault;
}

constexpr Return kNotSupported = 3;
constexpr Return kNotFound = 6;

int the_gpu = 0;
Device gpu() { return reinterpret_cast<Device>(&the_gpu); }

Return tell(Device device, unsigned* to, unsigned value) {
  if (device != gpu()) return 2;  // NVML_ERROR_INVALID_ARGUMENT
  *to = value;
  return kSuccess;
}

}  // namespace

extern "C" {

Return nvmlInit_v2() { return is("no_init") ? 9 : kSuccess; }
Return nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(Return status) {
  return status == 9 ? "Driver Not Loaded" : status == kNotSupported ? "Not Supported" : "Error";
}
Return nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::strncpy(text, "999.88.77", length);
  return kSuccess;
}
Return nvmlDeviceGetHandleByPciBusId_v2(const char* pci_bus_id, Device* device) {
  if (is("no_device") || std::string_view(pci_bus_id) != "0000:1B:00.0") return kNotFound;
  *device = gpu();
  return kSuccess;
}
// 250 W since an arbitrary start.
Return nvmlDeviceGetTotalEnergyConsumption(Device, unsigned long long* mj) {
  if (is("no_energy")) return kNotSupported;
  *mj = static_cast<unsigned long long>(edgellm::now_ns()) / 1'000'000 * 250;
  return kSuccess;
}
Return nvmlDeviceGetPowerUsage(Device device, unsigned* mw) {
  return is("no_power") ? kNotSupported : tell(device, mw, 251'500);
}
Return nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned* mw) {
  return tell(device, mw, 700'000);
}
Return nvmlDeviceGetClockInfo(Device device, unsigned kind, unsigned* mhz) {
  return tell(device, mhz, kind == kSmClock ? 1980 : kind == kMemoryClock ? 3201 : 1);
}
Return nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned* c) {
  return sensor == kGpuSensor ? tell(device, c, 41) : kNotSupported;
}
// The older of the two names.
Return nvmlDeviceGetCurrentClocksThrottleReasons(Device, unsigned long long* bits) {
  *bits = 0x4 | 0x20 | 0x10000;
  return kSuccess;
}
Return nvmlDeviceGetPersistenceMode(Device device, unsigned* mode) { return tell(device, mode, 1); }
Return nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned* g) {
  return tell(device, g, 5);
}
Return nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned* w) { return tell(device, w, 16); }
Return nvmlDeviceGetPcieThroughput(Device device, unsigned direction, unsigned* kb_s) {
  if (is("no_pcie")) return kNotSupported;
  return tell(device, kb_s, direction == kPcieSent ? 120 : 40);
}
Return nvmlDeviceGetMemoryInfo(Device, Memory* memory) {
  *memory = {143'000, 100'000, 43'000};
  return kSuccess;
}
Return nvmlDeviceGetComputeRunningProcesses_v3(Device, unsigned* count, Process* processes) {
  processes[0] = {1, 5'000, 0, 0};
  processes[1] = {static_cast<unsigned>(getpid()), 6'000, 0, 0};
  *count = 2;
  return kSuccess;
}
}
