// Where a model runs: the name a user gives, and the processor it means.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace edgellm {

// Takes what a choice of `auto` has to be told about: the program prints it.
using Note = std::function<void(std::string_view message)>;

// "auto", "cpu", "cuda" or "cuda:N".
bool is_device_name(const std::string& name);

// What is wrong with the name of a device and which there are; empty for a good one.
std::string device_name_problem(const std::string& name);

struct Device {
  std::optional<int> gpu;  // empty: the CPU
  std::string gpu_name;
};

// The device of that name. Throws Error (kDevice) where it cannot be used. For `auto` the first
// GPU, or the CPU; a note says why not the GPU where there is a driver for one.
Device choose_device(const std::string& name, const Note& note);

}  // namespace edgellm
