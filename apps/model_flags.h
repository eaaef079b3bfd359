// Opening the model that the user names, and the options of every command that runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "apps/terminal.h"
#include "base/progress.h"
#include "engine/backend.h"
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

// Bytes that a decoded token reads of the weights: everything but the embedding table, of which it
// reads one row. A tied head is that table, and is read. With a compressed copy of the head, that
// is read instead (MemoryPlan::head_copy).
uint64_t weight_bytes_per_token(const ModelFile& model, uint64_t head_copy_bytes = 0);

// Bytes of the KV cache of one sequence.
uint64_t kv_cache_bytes(const ModelConfig& config, int context, KvType type);

}  // namespace edgellm
