// Where a model runs: the name a user gives, and the processor it means.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace edgellm {

// Takes what a choice of `auto` has to be told about: the program prints it.
using Note = std::function<void(std::string_view message)>;

// "auto", "cpu", "cuda" or "cuda:N".
bool is_device_name(const std::string& name);

// What is wrong with the name of a device and which there are; empty for a good one.
std::string device_name_problem(const std::string& name);

// The same for several devices, which work together: "auto" alone, or names of one with commas
// between them, where "cuda:all" is every GPU, and a number behind a GPU is one more ("cuda:0,1").
std::string device_list_problem(const std::string& names);

struct Device {
  std::optional<int> gpu;  // empty: the CPU
  std::string gpu_name;
  std::string pci_bus_id = {};  // of a GPU
};

// The device of that name. Throws Error (kDevice) where it cannot be used. For `auto` the first
// GPU, or the CPU; a note says why not the GPU where there is a driver for one.
Device choose_device(const std::string& name, const Note& note);

// The devices of such a list, in its order; one of them may stand there several times. Throws Error
// (kDevice) where one cannot be used, and (kUnsupported) for GPUs of different kinds.
std::vector<Device> choose_devices(const std::string& names, const Note& note);

}  // namespace edgellm
