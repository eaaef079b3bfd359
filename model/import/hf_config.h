// A Hugging Face config.json as our hyperparameters. Strict: a key that changes the maths in a way
// edgellm does not compute is refused by name, and so is a key that nobody here knows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace edgellm::model_io {

enum class ScaleMeaning : uint8_t {
  kMultiplies,  // linear_class autobitlinear: weight_scale is mean|W|
  kDivides,     // any other: weight_scale is 1 / mean|W|
  kUnknown,     // no quantization_config: packed weights cannot be read
};

// quantization_config.quantization_mode.
enum class QuantMode : uint8_t { kAbsent, kOffline, kOnline };

struct HfConfig {
  ModelConfig model;
  ScaleMeaning scale_meaning = ScaleMeaning::kUnknown;
  QuantMode quant_mode = QuantMode::kAbsent;
};

// What is known of the weights beside config.json.
enum class WeightsKnown : uint8_t {
  kFromConfig,  // nothing: it must say itself that they are ternary, or they must be
  kTernary,     // a file holds ternary ones, which may have been made from a model that had others
  kMade,        // there are none: random ones will be made
};

// Throws Error: kModelFile for a broken file, kUnsupported for what edgellm cannot compute.
HfConfig read_hf_config(const std::string& path, const std::vector<std::string>& ignore_keys,
                        WeightsKnown weights = WeightsKnown::kFromConfig);

// The frequencies of RoPE with scaling applied, [head_dim / 2], with the same float32 values as
// transformers'.
std::vector<float> rope_inv_freq(const ModelConfig& config);

}  // namespace edgellm::model_io
