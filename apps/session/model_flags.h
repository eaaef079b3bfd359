// Opening the model that the user names, and the options of every command that runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "apps/common/terminal.h"
#include "base/progress.h"
#include "engine/backend.h"
#include "engine/token_bytes.h"
#include "model/model_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxPrefillChunk = 65536;

struct EngineFlags {
  std::string device = "auto";
  int context = 0;  // 0: the model's maximum
  int threads = 0;  // 0: every core this process may use
  std::string kv_type = "f16";
  int prefill_chunk = 0;  // 0: the backend's default
  bool no_graph = false;
  bool full_head = false;  // a flag of commands with greedy steps; the others set it
  bool no_verify = false;
};

// "auto", "cpu", "cuda" or "cuda:N".
bool is_device_name(const std::string& name);

void add_model_argument(CLI::App& app, std::string& path);
void add_engine_options(CLI::App& app, EngineFlags& flags);

// What is wrong with the name of a shape that `synth` is to make; empty for a good one.
std::string shape_problem(const std::string& shape);

// What is wrong with the name of a device and which there are; empty for a good one.
std::string device_name_problem(const std::string& name);

// Where a model is to run.
struct Device {
  std::optional<int> gpu;  // empty: the CPU
  std::string gpu_name;
};

// Takes what a choice of `auto` has to be told about: the program prints it.
using Note = std::function<void(std::string_view message)>;

// The device that the flags name: throws Error (kDevice) where it cannot be used, before any other
// work begins. For `auto` the first GPU, or the CPU; a note says why not the GPU where there is a
// driver for one.
Device choose_device(const EngineFlags& flags, const Note& note = print_note);

// For `auto` on a GPU: says so, or takes the CPU where the model does not fit and says that.
std::unique_ptr<Backend> make_backend(const ModelFile& model, const EngineFlags& flags,
                                      const Device& device, EngineOptions options, const Note& note,
                                      const Progress& progress);

// The same with notes and progress on stderr.
std::unique_ptr<Backend> make_backend(const ModelFile& model, const EngineFlags& flags,
                                      const Device& device, EngineOptions options);

// The model that the user names (model_folders.h). Checks the header and the metadata, reads no
// weights.
ModelFile open_model(const std::string& name);

// Empty where the file holds none.
std::optional<Tokenizer> load_tokenizer(const ModelFile& model);

// Checks every byte of the file unless the flags say not to.
void check_contents(const ModelFile& model, const EngineFlags& flags);

// `context` overrides the flag where it is not 0: commands that know how many positions they need.
EngineOptions engine_options(const EngineFlags& flags, const ModelConfig& config, int context = 0);

}  // namespace edgellm
