// How tokens are chosen: what a user asks for, and what becomes of it with a model's defaults.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/sampling.h"
#include "model/model_file.h"

namespace edgellm {

// Empty: the user says nothing.
struct SamplingChoice {
  bool model_defaults = false;  // --sample: what the model's file says
  std::optional<double> temperature;
  std::optional<int> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repeat_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::optional<uint64_t> seed;
  bool random_seed = false;  // --seed random; then `seed` is empty

  // As --seed takes it: a number, `random`, or -1 as in llama.cpp. Throws Error (kUsage).
  void set_seed(const std::string& name, const std::string& text);

  // Something that a greedy choice would not heed.
  bool names_values() const { return temperature || top_k || top_p || min_p; }
};

// What the choice alone can be blamed for, before a model is opened. Throws Error (kUsage).
void check_sampling(const SamplingChoice& choice);

// What transformers samples with where a model's generation_config.json names no top_k.
inline constexpr int kDefaultTopK = 50;

// The model's file says how to sample, and not that its default is greedy.
bool has_sampling_defaults(const TokenizerInfo& model, const std::string& model_path);

// Greedy where the choice says nothing, the seed 0; a fresh one for `random_seed`. With
// `model_defaults` those of the model, each of which the choice may replace. Where the model has
// none, they are transformers' own, provided that the choice names a temperature or a filter; else
// Error (kUsage). Error (kModelFile) where they cannot be used.
SamplingOptions sampling_options(const SamplingChoice& choice, const TokenizerInfo& model,
                                 const std::string& model_path);

// Another one each time, below 2^32.
uint64_t fresh_seed();

// Sets the option that the command line calls --NAME. Error (kUsage) for a name that is none or a
// value out of range; then nothing changes.
void set_sampling_option(SamplingOptions& options, const std::string& name,
                         const std::string& value);

nlohmann::ordered_json to_json(const SamplingOptions& options);

}  // namespace edgellm
