// A GPU as the driver's management library (NVML) sees it. The library is part of the driver and is
// opened with the first device.
//
// Values and units are those of NVIDIA's NVML API reference. Not every GPU has every sensor. A
// missing one says why and leaves the others as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/common/measured.h"

namespace edgellm {

struct PcieLink {
  unsigned generation = 0;
  unsigned width = 0;  // lanes
};

class NvmlDevice {
 public:
  virtual ~NvmlDevice() = default;

  virtual Measured<std::string> driver_version() const = 0;
  virtual Measured<double> power_limit_w() const = 0;  // the enforced one
  virtual Measured<bool> persistence_mode() const = 0;
  virtual Measured<PcieLink> pcie_link() const = 0;  // at present: an idle GPU may lower it
  virtual Measured<PcieLink> pcie_link_max() const = 0;

  virtual Measured<double> energy_j() const = 0;  // since the driver was loaded
  virtual Measured<double> power_w() const = 0;
  // Newer drivers give the power of this moment, older ones the mean of the last second.
  virtual bool power_is_instant() const = 0;
  virtual Measured<unsigned> sm_clock_mhz() const = 0;
  virtual Measured<unsigned> memory_clock_mhz() const = 0;
  virtual Measured<unsigned> temperature_c() const = 0;
  virtual Measured<uint64_t> throttle_reasons() const = 0;   // bits, see throttle_reason_names()
  virtual Measured<uint64_t> memory_used_bytes() const = 0;  // by everything on the GPU
  virtual Measured<uint64_t> process_memory_bytes() const = 0;
  // Each call watches the bus for 20 ms.
  virtual Measured<double> pcie_sent_bytes_per_s() const = 0;      // GPU to host
  virtual Measured<double> pcie_received_bytes_per_s() const = 0;  // host to GPU
};

// The GPU at this PCI address ("00000000:1B:00.0"). The library is the one that the environment
// variable EDGELLM_NVML names, or libnvidia-ml.so.1. It stays open while a device lives.
Measured<std::shared_ptr<NvmlDevice>> open_nvml_device(const std::string& pci_bus_id);

// "idle", "sw_power_cap", ...; unknown bits as "0x...".
std::vector<std::string> throttle_reason_names(uint64_t reasons);

}  // namespace edgellm
