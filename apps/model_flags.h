// Opening the model that the user names, and the options of every command that runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/backend.h"
#include "model/model_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

struct EngineFlags {
  std::string device = "auto";
  int context = 0;  // 0: the model's maximum
  int threads = 0;  // 0: every core this process may use
  std::string kv_type = "f16";
  int prefill_chunk = 0;  // 0: the backend's default
  bool no_verify = false;
};

void add_model_argument(CLI::App& app, std::string& path);
void add_engine_options(CLI::App& app, EngineFlags& flags);

// Throws Error where the named device cannot be used: before any other work begins.
void require_device(const EngineFlags& flags);

// Checks the header and the metadata, reads no weights. Says what to do where `path` is a folder or
// is not there.
ModelFile open_model(const std::string& path);

// Empty where the file holds none.
std::optional<Tokenizer> load_tokenizer(const ModelFile& model);

// Checks every byte of the file unless the flags say not to.
void check_contents(const ModelFile& model, const EngineFlags& flags);

// `context` overrides the flag where it is not 0: commands that know how many positions they need.
EngineOptions engine_options(const EngineFlags& flags, const ModelConfig& config, int context = 0);

// Bytes that a decoded token reads of the weights: everything but the embedding table, of which it
// reads one row. A tied head is that table, and is read.
uint64_t weight_bytes_per_token(const ModelFile& model);

// Bytes of the KV cache of one sequence.
uint64_t kv_cache_bytes(const ModelConfig& config, int context, KvType type);

}  // namespace edgellm
