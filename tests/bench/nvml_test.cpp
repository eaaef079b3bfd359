// The reader of NVML against a library that is built for this test (fake_nvml.cpp says what that
// can show), and against none.
#include "apps/nvml/nvml.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "apps/bench/gpu_monitor.h"
#include "tests/support/environment.h"

namespace edgellm::bench {
namespace {

using test::WithVariable;

constexpr const char* kBusId = "0000:1B:00.0";

std::shared_ptr<NvmlDevice> fake_device() {
  const auto device = open_nvml_device(kBusId);
  INFO((device ? "" : device.reason()));
  REQUIRE(device);
  return *device;
}

TEST_CASE("without NVML there is a reason") {
  const WithVariable library("EDGELLM_NVML", "/nonexistent/libnvidia-ml.so.1");
  const auto device = open_nvml_device(kBusId);
  REQUIRE(!device);
  CHECK(device.reason().find("/nonexistent/libnvidia-ml.so.1") != std::string::npos);
}

TEST_CASE("a library that is something else is refused") {
  const WithVariable library("EDGELLM_NVML", "libc.so.6");
  const auto device = open_nvml_device(kBusId);
  REQUIRE(!device);
  CHECK(device.reason() == "libc.so.6 lacks the functions of NVML");
}

TEST_CASE("what the library tells arrives in our units") {
  const WithVariable library("EDGELLM_NVML", EDGELLM_FAKE_NVML);
  const auto device = fake_device();
  CHECK(*device->driver_version() == "999.88.77");
  CHECK(*device->power_limit_w() == 700);
  CHECK(*device->persistence_mode());
  CHECK(device->pcie_link()->generation == 5);
  CHECK(device->pcie_link()->width == 16);
  CHECK(*device->power_w() == 251.5);
  CHECK(!device->power_is_instant());  // the library lacks nvmlDeviceGetFieldValues
  CHECK(*device->sm_clock_mhz() == 1980);
  CHECK(*device->memory_clock_mhz() == 3201);
  CHECK(*device->temperature_c() == 41);
  CHECK(*device->memory_used_bytes() == 43'000);
  CHECK(*device->process_memory_bytes() == 6'000);
  CHECK(*device->pcie_sent_bytes_per_s() == 120'000);
  CHECK(*device->pcie_received_bytes_per_s() == 40'000);
  CHECK(throttle_reason_names(*device->throttle_reasons()) ==
        std::vector<std::string>{"sw_power_cap", "sw_thermal_slowdown", "0x10000"});
  CHECK(throttle_reason_names(0).empty());
  // A function that a driver does not have is missing alone.
  REQUIRE(!device->pcie_link_max());
  CHECK(device->pcie_link_max().reason() ==
        "this driver has no nvmlDeviceGetMaxPcieLinkGeneration");
}

TEST_CASE("a driver that is not loaded, a GPU that is not there, a sensor that is missing") {
  const WithVariable library("EDGELLM_NVML", EDGELLM_FAKE_NVML);
  {
    const WithVariable mode("FAKE_NVML", "no_init");
    CHECK(open_nvml_device(kBusId).reason() == "nvmlInit_v2: Driver Not Loaded");
  }
  CHECK(!open_nvml_device("0000:00:00.0"));
  const WithVariable mode("FAKE_NVML", "no_power");
  const auto device = fake_device();
  CHECK(device->power_w().reason() == "nvmlDeviceGetPowerUsage: Not Supported");
  CHECK(device->sm_clock_mhz());
}

TEST_CASE("a recording measures the energy of its own time") {
  const WithVariable library("EDGELLM_NVML", EDGELLM_FAKE_NVML);
  const auto device = fake_device();
  GpuRecording recording(*device);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const GpuObservation seen = recording.finish(/*tokens=*/50);
  CHECK(seen.duration_ns >= 200'000'000);
  CHECK(seen.samples.size() >= 2);
  const nlohmann::ordered_json json = to_json(Measured<GpuObservation>(seen));
  CHECK(json["power_w_from_energy"].get<double>() == Approx(250).epsilon(0.05));
  CHECK(json["j_per_token"].get<double>() ==
        Approx(json["energy_j"].get<double>() / 50).epsilon(1e-9));
  CHECK(json["power_w_mean"].get<double>() == Approx(251.5));
  CHECK(json["power_w_peak"] == 251.5);
  CHECK(json["temperature_c_max"] == 41);
  CHECK(json["throttle_reasons"].size() == 3);
  // 120 kB/s for the recording's seconds, over 50 tokens.
  CHECK(json["pcie_sent_bytes_per_token"].get<double>() ==
        Approx(120'000 * static_cast<double>(seen.duration_ns) / 1e9 / 50));
  CHECK(json["power_samples"].size() == seen.samples.size());
  CHECK(!json.contains("not_available"));
}

TEST_CASE("what a recording could not see is null, never an estimate") {
  const WithVariable library("EDGELLM_NVML", EDGELLM_FAKE_NVML);
  const WithVariable mode("FAKE_NVML", "no_energy");
  const auto device = fake_device();
  GpuRecording recording(*device);
  const nlohmann::ordered_json json = to_json(Measured<GpuObservation>(recording.finish(1)));
  CHECK(json["power_w_mean"].get<double>() == Approx(251.5));
  for (const char* name : {"energy_j", "j_per_token", "power_w_from_energy"}) {
    CHECK(json[name].is_null());
    CHECK(json["not_available"][name] == "nvmlDeviceGetTotalEnergyConsumption: Not Supported");
  }
  const nlohmann::ordered_json none = to_json(Measured<GpuObservation>(NotAvailable{"no GPU"}));
  for (const auto& [name, value] : json.items())
    CHECK((name == "not_available" || none.contains(name)));
  CHECK(none["not_available"]["temperature_c_max"] == "no GPU");
}

}  // namespace
}  // namespace edgellm::bench
