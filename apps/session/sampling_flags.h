// The options that say how tokens are chosen, of every command that generates text.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/sampling.h"
#include "model/model_file.h"

namespace edgellm {

// Empty: not given on the command line.
struct SamplingFlags {
  bool model_defaults = false;  // --sample
  std::optional<double> temperature;
  std::optional<int> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repeat_penalty;
  std::optional<uint64_t> seed;
};

void add_sampling_options(CLI::App& app, SamplingFlags& flags);

// What the flags alone can be blamed for, before a model is opened. Throws Error (kUsage).
void check_sampling_flags(const SamplingFlags& flags);

// Greedy where the flags say nothing. With --sample the model's own defaults, each of which a flag
// may replace; Error (kUsage) where the model has none, (kModelFile) where they cannot be used.
SamplingOptions sampling_options(const SamplingFlags& flags, const TokenizerInfo& model,
                                 const std::string& model_path);

// Sets the option that the command line calls --NAME. Error (kUsage) for a name that is none or a
// value out of range; then nothing changes.
void set_sampling_option(SamplingOptions& options, const std::string& name,
                         const std::string& value);

nlohmann::ordered_json to_json(const SamplingOptions& options);

}  // namespace edgellm
