// The part of NVML's C interface that is called (NVIDIA's NVML API reference, nvml.h): types and
// numbers that its ABI has kept since CUDA 11. With them here, builds without CUDA's toolkit can
// read NVML.
#pragma once

namespace edgellm::nvml_api {

using Return = int;  // nvmlReturn_t
inline constexpr Return kSuccess = 0;

using Device = struct DeviceOfTheDriver*;

// nvmlClockType_t, nvmlTemperatureSensors_t, nvmlPcieUtilCounter_t
inline constexpr unsigned kSmClock = 1;
inline constexpr unsigned kMemoryClock = 2;
inline constexpr unsigned kGpuSensor = 0;
inline constexpr unsigned kPcieSent = 0;
inline constexpr unsigned kPcieReceived = 1;

// NVML_VALUE_NOT_AVAILABLE of a process's memory.
inline constexpr unsigned long long kNoValue = ~0ULL;

struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};

struct Process {  // nvmlProcessInfo_v2_t
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

inline constexpr unsigned kPowerInstantField = 186;  // NVML_FI_DEV_POWER_INSTANT, mW
struct FieldValue {                                  // nvmlFieldValue_t
  unsigned field;
  unsigned scope;
  long long timestamp_us;
  long long latency_us;
  int type;
  Return status;
  union {
    double f64;
    unsigned u32;
    unsigned long long u64;
  } value;
};

extern "C" {
using Init = Return();
using Shutdown = Return();
using ErrorString = const char*(Return);
using DriverVersion = Return(char* text, unsigned length);
using HandleByPciBusId = Return(const char* pci_bus_id, Device*);
using GetU32 = Return(Device, unsigned*);
using GetU64 = Return(Device, unsigned long long*);
using GetOfKind = Return(Device, unsigned kind, unsigned*);
using MemoryInfo = Return(Device, Memory*);
using ComputeProcesses = Return(Device, unsigned* count, Process*);
using FieldValues = Return(Device, int count, FieldValue*);
}

}  // namespace edgellm::nvml_api
